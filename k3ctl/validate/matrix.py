"""The matrix: batch × context on a server, and draft length × parallelism over servers. Pure, but for its checks.

A server has one draft length and one layout; the others of the axes are filled by validating further servers into the
same directory (``--resume``). A cell that no server filled is a hole.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from k3ctl.errors import UsageError
from k3ctl.validate import coverage
from k3ctl.validate.checks import context, equality
from k3ctl.validate.facts import Facts
from k3ctl.validate.record import Check, Judged, Result, not_run
from k3ctl.validate.session import Session

AXES = ("batch", "context", "drafts", "parallel")
CONTEXTS = (128, *context.LENGTHS)
TIER = "matrix"
Axes = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Cell:
    """One cell. ``parallel``: as ``layout`` writes it."""

    batch: int
    context: int
    drafts: int | None
    parallel: str

    @property
    def told(self) -> str:
        """One phrase for people."""
        k = "K not known" if self.drafts is None else f"K={self.drafts}"
        return f"batch {self.batch}, {self.context} tokens, {k}, {self.parallel}"


def layout(sizes: Sequence[int] | None) -> str:
    """``TP8``, ``TP8-PP2``, ``TP8-PP2-DP4``; empty where it is not known."""
    if not sizes:
        return ""
    named = zip(("TP", "PP", "DP"), sizes, strict=True)
    return "-".join(f"{name}{size}" for name, size in named if name == "TP" or size > 1)


def axes(facts: Facts, given: Mapping[str, Sequence[Any] | None]) -> dict[str, list[Any]]:
    """The axes that were ``given``; those of the server where they were not.

    Raises:
        UsageError: a value of an axis is none.
    """
    most = facts.max_model_len or CONTEXTS[0]
    usual: dict[str, list[Any]] = {
        "batch": list(equality.BATCHES),
        "context": [length for length in CONTEXTS if length < most] + [most],
        "drafts": [facts.draft_tokens],
        "parallel": [layout(facts.parallel)],
    }
    found = {name: list(given.get(name) or usual[name]) for name in AXES}
    for name, least in (("batch", 1), ("context", 64), ("drafts", 0)):
        bad = next((value for value in found[name] if value is not None and value < least), None)
        if bad is not None:
            raise UsageError(f"{bad} is no {name} of a matrix: {least} is the least")
    return found


def checks(of: Axes) -> tuple[Check, ...]:
    """The cells of one server."""
    return tuple(
        Check(
            name(batch, length),
            f"{batch} requests of {length} tokens at once answer as each alone",
            cell(batch, length),
            2 + batch / 2 + length * batch / 2000,
        )
        for batch, length in itertools.product(of["batch"], of["context"])
    )


def name(batch: int, length: int) -> str:
    """Name of a cell's check."""
    return f"{TIER}.b{batch}.c{length}"


def cell(batch: int, length: int) -> Callable[[Session], Judged]:
    """``batch`` requests whose contexts end at ``length`` tokens, at once and alone."""

    def run(session: Session) -> Judged:
        most = session.facts.max_model_len
        if most is not None and length > most:
            return not_run(f"the longest context that is served is {most} tokens")
        if reason := equality.too_large(session, batch):
            return not_run(reason)
        sent = length - equality.TOKENS - session.facts.query_len
        return equality.at_once(session, batch, sent)

    return run


def cells(of: Axes) -> Iterator[Cell]:
    """Every cell that was planned."""
    for values in itertools.product(*(of[name] for name in AXES)):
        yield Cell(*values)


def outcomes(
    of: Axes, servers: Mapping[str, Mapping[str, Any]], results: Sequence[Result]
) -> dict[Cell, Result | None]:
    """Every planned cell with its result; None where no server was asked."""
    by_place = {(result.server, result.check): result for result in results}
    found: dict[Cell, Result | None] = {}
    for planned in cells(of):
        keys = [
            key
            for key, facts in servers.items()
            if (facts.get("draft_tokens"), layout(facts.get("parallel")))
            == (planned.drafts, planned.parallel)
        ]
        hits = [by_place.get((key, name(planned.batch, planned.context))) for key in keys]
        found[planned] = next((hit for hit in hits if hit is not None), None)
    return found


def holes(of: Axes, servers: Mapping[str, Mapping[str, Any]], results: Sequence[Result]) -> list[str]:
    """The planned cells that no server filled: those that were not run have their reason in the coverage."""
    if not of:
        return []
    return [
        f"{coverage.NOT_SHOWN}{planned.told} {coverage.NOT_FINISHED}"
        for planned, result in outcomes(of, servers, results).items()
        if result is None
    ]
