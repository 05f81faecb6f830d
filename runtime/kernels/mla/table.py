"""Launch shapes of the attention core by product: by rule, until they are measured."""

from dataclasses import dataclass
from math import inf

from runtime.kernels.common.launch.device import H200

MEASURED_ON: frozenset[str] = frozenset()
"""Products on which the CuTe core was measured faster than its fallback: none yet."""


@dataclass(frozen=True)
class Launch:
    """How the core is launched for up to `most_tokens` token rows. span: least tiles of a CTA's run (`shapes`).

    stages: of 32 cache rows on their way to a CTA; None for as many as fit.
    """

    most_tokens: float
    span: int
    stages: int | None = None


# A part costs about as much as a tile: a span of four keeps parts to a quarter of the traffic.
TABLES: dict[str, tuple[Launch, ...]] = {H200: (Launch(inf, 4),)}


def launch_of(table: tuple[Launch, ...], tokens: int) -> Launch:
    """The launch of a product's table for a number of token rows."""
    return next(launch for launch in table if tokens <= launch.most_tokens)
