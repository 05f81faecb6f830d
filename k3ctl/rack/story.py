"""Which node's failure was the first: the others only tell of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_HEARSAY = re.compile(r"node (\d+) (failed|stops|is gone)\b[: ]*(.*)", re.DOTALL)


@dataclass(frozen=True)
class Ending:
    """How a node's run ended. ``gone``: the node itself could not say it."""

    rank: int
    state: str
    reason: str
    gone: bool = False


@dataclass(frozen=True)
class First:
    """The node where it began and what happened there. ``other``: they lost each other, and neither is to blame."""

    rank: int
    reason: str
    other: int | None = None


def first(endings: Sequence[Ending]) -> First | None:
    """Where the failure began; None when nothing failed. ``endings`` in the order in which they became known.

    A node that vanished wins: its peers' engines may fail before anyone says so. Then a node that tells of its own
    failure, then what the others tell.
    """
    for ending in endings:
        if ending.gone:
            return First(ending.rank, ending.reason)
    failed = [ending for ending in endings if ending.state == "failed"]
    for ending in failed:
        if _HEARSAY.match(ending.reason) is None:
            return First(ending.rank, ending.reason)
    told = {ending.rank: found for ending in failed if (found := _blamed(ending.reason))}
    for rank, found in told.items():
        back = told.get(found.rank)
        if back is not None and back.rank == rank:
            return First(rank, found.reason, other=found.rank)
    return next(iter(told.values()), None)


def _blamed(reason: str) -> First | None:
    """The last node that a chain of hearsay names: ``node 0 stops: node 2 failed: …`` began on node 2."""
    found: First | None = None
    while match := _HEARSAY.match(reason):
        reason = match[3]
        found = First(int(match[1]), f"is gone {reason}" if match[2] == "is gone" else reason)
    return found
