"""Launch shapes of the routed experts by product, width and number of tokens."""

from dataclasses import dataclass
from math import inf

from runtime.kernels.common.launch.device import H200
from runtime.kernels.moe_experts.shapes import Down, GateUp

MEASURED_ON: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Launch:
    """How both kernels are launched for up to `most_tokens` tokens."""

    most_tokens: float
    gate_up: GateUp
    down: Down


# Not measured yet: by rule. Few tokens need a cluster to spread 16 experts over all multiprocessors.
TABLES: dict[str, dict[int, tuple[Launch, ...]]] = {
    H200: {
        384: (  # a rank of TP8
            Launch(2, GateUp(4, 4, 3, 3), Down(4, 4, 3, 4)),
            Launch(inf, GateUp(8, 1, 2, 2), Down(4, 7, 3, 4)),
        ),
        192: (  # a rank of TP16
            Launch(2, GateUp(7, 4, 2, 2), Down(4, 4, 3, 3)),
            Launch(inf, GateUp(8, 1, 2, 2), Down(4, 7, 3, 3)),
        ),
    }
}
OTHER = (Launch(inf, GateUp(8, 1, 2, 2), Down(4, 7, 3, 2)),)  # by rule, for widths without a table


def launch_of(table: dict[int, tuple[Launch, ...]], width: int, tokens: int) -> Launch:
    """The launch of a product's table for a rank's width and a number of tokens."""
    return next(launch for launch in table.get(width, OTHER) if tokens <= launch.most_tokens)
