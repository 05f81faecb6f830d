"""Launch shapes of the routed experts by number of tokens."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Launch:
    """How to launch for up to `tokens` tokens.

    gate_up: (warps, cluster, resident, depth) of `ExpertsGateUp`. down: (warps, shares, resident, depth) of
    `ExpertsDown`.
    """

    tokens: float
    gate_up: tuple[int, int, int, int]
    down: tuple[int, int, int, int]


# Not measured yet: by rule. Few tokens need a cluster to spread 16 experts over all multiprocessors.
TABLE = {
    384: (  # a rank of TP8
        Launch(2, (4, 4, 3, 3), (4, 4, 3, 4)),
        Launch(inf, (8, 1, 2, 2), (4, 7, 3, 4)),
    ),
    192: (  # a rank of TP16
        Launch(2, (7, 4, 2, 2), (4, 4, 3, 3)),
        Launch(inf, (8, 1, 2, 2), (4, 7, 3, 3)),
    ),
}
OTHER = (Launch(inf, (8, 1, 2, 2), (4, 7, 3, 2)),)


def launch_of(width: int, tokens: int) -> Launch:
    """The launch shape of a rank's width for a number of tokens."""
    return next(launch for launch in TABLE.get(width, OTHER) if tokens <= launch.tokens)
