"""Launch shapes of the routed experts by product, width and number of tokens."""

from dataclasses import dataclass
from math import inf

from runtime.kernels.common.launch.device import H200
from runtime.kernels.moe_experts.shapes import Down, GateUp

MEASURED_ON = frozenset({H200})


@dataclass(frozen=True)
class Launch:
    """How both kernels are launched for up to `most_tokens` tokens."""

    most_tokens: float
    gate_up: GateUp
    down: Down


# The fastest of the measured shapes, for 384 both kernels in sequence, for 192 each alone. Few tokens need clusters, to
# spread 16 experts over all multiprocessors.
TABLES: dict[str, dict[int, tuple[Launch, ...]]] = {
    H200: {
        384: (  # a rank of TP8
            Launch(1, GateUp(8, 2, 2, 2), Down(4, 4, 2, 6, prefetch=True)),
            Launch(4, GateUp(8, 2, 2, 2), Down(4, 9, 4, 4)),
            Launch(inf, GateUp(8, 1, 2, 2), Down(4, 9, 4, 4)),
        ),
        192: (  # a rank of TP16
            Launch(2, GateUp(7, 4, 2, 2), Down(4, 4, 2, 6)),
            Launch(8, GateUp(8, 2, 2, 2), Down(4, 9, 4, 3)),
            Launch(inf, GateUp(8, 1, 2, 2), Down(4, 9, 4, 3)),
        ),
    }
}
OTHER = (Launch(inf, GateUp(8, 1, 2, 2), Down(4, 9, 4, 2)),)  # by rule, for widths without a table


def launch_of(table: dict[int, tuple[Launch, ...]], width: int, tokens: int) -> Launch:
    """The launch of a product's table for a rank's width and a number of tokens."""
    return next(launch for launch in table.get(width, OTHER) if tokens <= launch.most_tokens)
