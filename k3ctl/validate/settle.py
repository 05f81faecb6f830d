"""What a check's interval makes of its outcome. Pure.

A pass is worth what its decode steps are worth: on the claimed path it stands, on another it is *void*, and where the
witness is missing, other requests ran, or the counters cannot be believed, it is *unknown*. A failure stays a failure.
"""

from __future__ import annotations

from dataclasses import replace

from k3ctl.validate.interval import Interval, Standing
from k3ctl.validate.record import Check, Judged, Outcome


def settle(check: Check, judged: Judged, interval: Interval) -> Judged:
    """The outcome once its interval is known."""
    if judged.outcome is not Outcome.PASSED or not check.decodes:
        return judged
    if interval.standing is Standing.UNKNOWN:
        return replace(judged, outcome=Outcome.UNKNOWN, statement=f"{interval.reason} ({judged.statement})")
    if interval.standing is not Standing.ON_PATH:
        return replace(judged, outcome=Outcome.VOID, statement=f"{interval.reason} ({judged.statement})")
    return judged
