"""Sizes of K3's latent attention, and how a step's context is split: the host's twin of what the kernels compute.

A *pair* is a request and a group of its query rows (heads · q, token by token); pairs are numbered request by request.
A *tile* is `TILE` cache rows of a pair. The tiles of a step are numbered pair by pair, and CTA c takes the run
[c · run, (c + 1) · run). What a CTA adds to a pair is a *part*; part (c, p) is kept at place c + p.
"""

from collections.abc import Sequence
from dataclasses import dataclass

LATENT, KEY, NOPE, VALUE = 512, 64, 128, 128
ROW = LATENT + KEY
HEAD = NOPE + KEY
TILE = 32
MAX_TOKENS = 8
MAX_REQUESTS = 64


@dataclass(frozen=True)
class Split:
    """How a step is split. rows: query rows of a pair, 16 or 32. groups: pairs of a request. span: least tiles of a
    CTA's run. ctas: of the persistent grid.
    """

    rows: int
    groups: int
    span: int
    ctas: int

    def places(self, requests: int) -> int:
        """Places for parts that a step of `requests` requests may need."""
        return self.ctas + requests * self.groups


def split(heads: int, tokens: int, span: int, ctas: int) -> Split:
    """The split of steps with heads · tokens query rows a request."""
    rows = 16 if heads * tokens <= 16 else 32
    return Split(rows, -(-heads * tokens // rows), span, ctas)


def parts_of(lengths: Sequence[int], split: Split) -> list[range]:
    """Places of the parts of every pair, in order; lengths: cache rows of every request that this rank holds."""
    tiles = [-(-length // TILE) for length in lengths for _ in range(split.groups)]
    run = max(split.span, -(-sum(tiles) // split.ctas))
    found, start = [], 0
    for pair, count in enumerate(tiles):
        first, last = start // run, (start + count - 1) // run
        found.append(range(first + pair, last + pair + 1) if count else range(0))
        start += count
    return found
