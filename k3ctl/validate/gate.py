"""Does a server still do right what it did right before? Two summaries, check by check. Pure.

A check that passed must pass; what became void, unknown, not run or is missing is no pass. Servers of a matrix are
paired by draft length and layout, single ones with each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from k3ctl.validate import matrix, state

Summary = Mapping[str, Any]
SAME_MODEL = ("model", "model_digest")
"""What must be equal, else the two are no one's before and after; ``--vary`` lets it differ."""
MISSING = "missing"


@dataclass(frozen=True)
class CheckVerdict:
    """One check on one server. ``outcome``: ``regression``, ``same``, ``improvement`` or ``new``."""

    check: str
    server: str
    base: str
    new: str
    outcome: str
    statement: str


def compare(base: Summary, new: Summary) -> list[CheckVerdict]:
    """Every check of either side."""
    before, after = _placed(base), _placed(new)
    return [
        _verdict(place, before.get(place), after.get(place))
        for place in [*before, *(p for p in after if p not in before)]
    ]


def refused(base: Summary, new: Summary, varied: frozenset[str] = frozenset()) -> list[str]:
    """Why the two say nothing of each other; empty when they do."""
    reasons = []
    for name in SAME_MODEL:
        mine, theirs = ({_fact(facts, name) for facts in side["servers"].values()} for side in (new, base))
        if name in varied or (mine == theirs and None not in mine):
            continue
        reasons.append(f"{name}: {_told(mine)} in the new bundle, {_told(theirs)} in the base")
    return reasons


def changes(base: Summary, new: Summary) -> list[str]:
    """What else differs between the servers: what a regression may come from."""
    before, after = _servers(base), _servers(new)
    return [
        f"{where}: {text}" if len(after) > 1 else text
        for where in before
        if where in after
        for text in state.fact_differences(before[where], after[where])
    ]


def _verdict(
    place: tuple[str, str], base: Mapping[str, Any] | None, new: Mapping[str, Any] | None
) -> CheckVerdict:
    was, now = (MISSING if side is None else str(side["outcome"]) for side in (base, new))
    if base is None:
        outcome = "new"
    elif was == "passed":
        outcome = "same" if now == "passed" else "regression"
    else:
        outcome = "improvement" if now == "passed" else "same"
    statement = str(new["statement"]) if new is not None else f"was: {(base or {}).get('statement', '')}"
    return CheckVerdict(place[1], place[0], was, now, outcome, statement)


def _placed(summary: Summary) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Results by where their server stands, and check."""
    places = _places(summary)
    return {(places.get(result["server"], ""), result["check"]): result for result in summary["results"]}


def _servers(summary: Summary) -> dict[str, Mapping[str, Any]]:
    places = _places(summary)
    return {places[key]: facts for key, facts in summary["servers"].items()}


def _places(summary: Summary) -> dict[str, str]:
    """Server key → draft length and layout; empty for the only one, whatever it is."""
    if len(summary["servers"]) == 1 and not summary["matrix"]:
        return dict.fromkeys(summary["servers"], "")
    return {
        key: f"K={facts.get('draft_tokens')} {matrix.layout(facts.get('parallel'))}".strip()
        for key, facts in summary["servers"].items()
    }


def _fact(facts: Mapping[str, Any], name: str) -> str | None:
    value = facts.get(name) or (facts.get("launch") or {}).get(name)
    return None if value is None else str(value)


def _told(values: set[str | None]) -> str:
    return ", ".join(sorted(str(value) if value is not None else "not known" for value in values))


def failing(verdicts: list[CheckVerdict], *, strict: bool) -> Iterator[CheckVerdict]:
    """The verdicts that fail a gate; ``strict``: also every check that does not pass now."""
    for verdict in verdicts:
        bad_now = verdict.new in {"failed", "void", "unknown"}
        new_fault = verdict.outcome == "new" and bad_now
        if verdict.outcome == "regression" or new_fault or (strict and verdict.new != "passed"):
            yield verdict
