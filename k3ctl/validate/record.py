"""What a check is, and what came of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from k3ctl.validate.interval import Interval
    from k3ctl.validate.session import Session


class Outcome(StrEnum):
    """What a result says. Only ``PASSED`` is good; ``NOT_RUN`` says nothing, with the reason."""

    PASSED = "passed"
    FAILED = "failed"
    VOID = "void"
    """It would have passed, but not on the claimed path."""
    UNKNOWN = "unknown"
    """It may have passed: what it rests on could not be seen."""
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Judged:
    """What a check found. ``evidence``: JSON-able counts, seeds, statistics and power."""

    outcome: Outcome
    statement: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


def passed(statement: str, **evidence: Any) -> Judged:
    """The check shows what it is for."""
    return Judged(Outcome.PASSED, statement, evidence)


def failed(statement: str, **evidence: Any) -> Judged:
    """The server does it wrong."""
    return Judged(Outcome.FAILED, statement, evidence)


def unknown(statement: str, **evidence: Any) -> Judged:
    """The answers allow no statement."""
    return Judged(Outcome.UNKNOWN, statement, evidence)


def not_run(reason: str, **evidence: Any) -> Judged:
    """It cannot be tried here, and why."""
    return Judged(Outcome.NOT_RUN, reason, evidence)


@dataclass(frozen=True)
class Check:
    """One check. ``name``: ``tier.group`` or ``tier.group.case``; ``shows``: what a pass shows, in one phrase.

    ``seconds``: estimate on the CPU demo. ``decodes``: a pass rests on decode steps of the claimed path; without it,
    the check says nothing of a path.
    """

    name: str
    shows: str
    run: Callable[[Session], Judged]
    seconds: float = 5.0
    decodes: bool = True

    @property
    def tier(self) -> str:
        """First part of the name."""
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Result:
    """One check's result as it is kept. ``started_at``: Unix seconds; ``server``: key of the server that answered."""

    check: str
    shows: str
    outcome: Outcome
    statement: str
    evidence: Mapping[str, Any]
    interval: Mapping[str, Any] | None
    started_at: float
    seconds: float
    server: str = ""

    def json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "outcome": self.outcome.value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        """Rebuild from ``json``. Raises TypeError or ValueError for anything else."""
        return cls(**{**data, "outcome": Outcome(data["outcome"])})


def result(
    check: Check, judged: Judged, interval: Interval | None, started_at: float, seconds: float
) -> Result:
    """The result of a check whose interval was judged too."""
    return Result(
        check.name,
        check.shows,
        judged.outcome,
        judged.statement,
        judged.evidence,
        None if interval is None else interval.json(),
        started_at,
        round(seconds, 3),
    )


def on_server(kept: Result, server: str) -> Result:
    """The same, with the key of the server that answered."""
    return replace(kept, server=server)
