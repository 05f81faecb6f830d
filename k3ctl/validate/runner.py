"""Runs checks in order and keeps every result at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from k3ctl.errors import EngineError
from k3ctl.server.client import BadAnswer, HttpError
from k3ctl.validate import interval
from k3ctl.validate.interval import Interval
from k3ctl.validate.record import Check, Judged, Outcome, Result, failed, on_server, result, unknown
from k3ctl.validate.session import Session
from k3ctl.validate.settle import settle
from k3ctl.validate.state import State

Tell = Callable[[str], Any]


def run(session: Session, checks: Sequence[Check], state: State, tell: Tell, server: str = "") -> None:
    """Run what is not finished yet.

    Raises:
        EngineError: the server is gone; the check under which it went has failed.
    """
    for number, check in enumerate(checks, 1):
        mark = f"[{number}/{len(checks)}] {check.name}"
        if state.has(check.name, server):
            tell(f"{mark}: finished before")
            continue
        tell(f"{mark}: about {check.seconds:.0f} s")
        found = on_server(one(session, check), server)
        state.add(found)
        tell(f"{mark}: {found.outcome} — {found.statement}")


def one(session: Session, check: Check) -> Result:
    """Run one check inside an interval of its own. Raises EngineError when the server is gone before it."""
    started_at, started = time.time(), time.monotonic()
    try:
        before = session.begin()
    except HttpError as error:
        raise _gone(session, error) from error
    judged = _judged(session, check)
    seconds = time.monotonic() - started
    seen: Interval | None = None
    if judged.outcome is not Outcome.NOT_RUN:  # else there is nothing to account for
        try:
            seen = interval.read(session.end(before, seconds))
        except HttpError as error:
            judged = failed(f"the server went away during this check: {error.reason}", found=judged.statement)
    settled = judged if seen is None else settle(check, judged, seen)
    return result(check, settled, seen, started_at, seconds)


def _judged(session: Session, check: Check) -> Judged:
    """An answer that is an error is a result, and so is the end of the server under it."""
    try:
        return check.run(session)
    except BadAnswer as error:
        return failed(error.message) if error.status >= 500 else unknown(error.message)
    except HttpError as error:
        return unknown(error.message)
    except (LookupError, TypeError, ValueError) as error:
        return unknown(f"the answer has another shape than vLLM's ({type(error).__name__}: {error})")


def _gone(session: Session, error: HttpError) -> EngineError:
    return EngineError(
        f"`{session.url}` stopped answering: {error.reason}",
        hint="`k3ctl triage` reads the engine's log; go on with `--resume` when it is back",
    )
