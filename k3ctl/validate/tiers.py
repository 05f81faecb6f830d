"""Which checks a tier has, and what it takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from k3ctl.errors import UsageError, unknown
from k3ctl.validate.checks import ab, canary, context, equality, quality, requests, sampling, structured
from k3ctl.validate.record import Check

TIERS: Mapping[str, tuple[Check, ...]] = {
    "canary": (*canary.CHECKS, sampling.CANARY),
    "features": (
        *sampling.CHECKS,
        *requests.CHECKS,
        *structured.CHECKS,
        *equality.CHECKS,
        *context.CHECKS,
    ),
    "quality": quality.CHECKS,
    "ab": ab.CHECKS,
}


def checks(tiers: Iterable[str], only: Sequence[str] = ()) -> tuple[Check, ...]:
    """The checks of ``tiers`` in order; with ``only``, those whose name one of these patterns matches.

    Raises:
        UsageError: an unknown tier, or a pattern that matches nothing.
    """
    found: list[Check] = []
    for tier in dict.fromkeys(tiers):
        if tier not in TIERS:
            raise unknown("tier", tier, TIERS)
        found += TIERS[tier]
    for pattern in only:
        if not any(fnmatchcase(check.name, pattern) for check in found):
            raise UsageError(f"no check matches `{pattern}`", hint="`k3ctl validate --list` names them")
    return tuple(c for c in found if not only or any(fnmatchcase(c.name, pattern) for pattern in only))


def seconds(of: Iterable[Check]) -> float:
    """Estimate on the CPU demo."""
    return sum(check.seconds for check in of)
