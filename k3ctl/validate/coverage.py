"""What a set of results shows together, and what it leaves open. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from k3ctl.validate.record import Outcome, Result

NOT_SHOWN = "not shown: "
NOT_FINISHED = "(not finished)"


@dataclass(frozen=True)
class Coverage:
    """``good``: something passed, and nothing failed, is void or unknown. ``holes``: what was not shown, and why."""

    counts: dict[str, int]
    good: bool
    statement: str
    holes: tuple[str, ...]

    def json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "good": self.good,
            "counts": self.counts,
            "statement": self.statement,
            "holes": list(self.holes),
        }


def of(results: Sequence[Result], planned: Iterable[tuple[str, str]] = ()) -> Coverage:
    """The coverage of ``results``; ``planned``: (check, server) that should be there."""
    counted = Counter(result.outcome for result in results)
    counts = {outcome.value: counted[outcome] for outcome in Outcome}
    seen = {(result.check, result.server) for result in results}
    missing = [name for name, server in planned if (name, server) not in seen]
    bad = [outcome for outcome in (Outcome.FAILED, Outcome.VOID, Outcome.UNKNOWN) if counted[outcome]]
    good = bool(counted[Outcome.PASSED]) and not bad and not missing
    said = ", ".join(f"{n} {name}" for name, n in counts.items() if n) or "nothing was run"
    if missing:
        said += f", {len(missing)} missing"
    holes = [f"{NOT_SHOWN}{r.check} ({r.statement})" for r in results if r.outcome is Outcome.NOT_RUN]
    holes += [f"{NOT_SHOWN}{name} {NOT_FINISHED}" for name in missing]
    return Coverage(counts, good, said, tuple(holes))


def unfinished(hole: str) -> bool:
    """The hole is one that a longer run would fill, unlike what cannot be tried on this server."""
    return hole.endswith(NOT_FINISHED)
