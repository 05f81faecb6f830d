"""Measured acceptance against the golden curve: how far below, and at which position it breaks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from k3ctl.telemetry.measures import Acceptance
from k3ctl.telemetry.reference import Golden

LOW_FACTOR = 0.6
"""Below this share of the golden length. Creative writing has 0.68 of it at K=7 (vLLM day-0 blog), so it stays out."""

BREAK_FACTOR = 0.5
MIN_REACHED = 50
"""Drafts whose token at a position was looked at, before the rate there is judged."""


def shortfall(data: Acceptance, golden: Golden) -> str:
    """Why acceptance is far below the curve, in words with both figures; empty when it is not."""
    position = break_position(data.drafts, data.rates, golden.rates)
    if data.length >= LOW_FACTOR * golden.length and position is None:
        return ""
    against = (
        f"length {data.length:.2f} against {golden.length:.2f} of the golden curve at K={data.draft_tokens}"
    )
    if position is None:
        return f"{against}, falling evenly over the positions"
    rates = f"{data.rates[position]:.2f} where the curve has {golden.rates[position]:.2f}"
    return f"{against}; it breaks after position {position - 1}: position {position} accepts {rates}"


def break_position(drafts: float, rates: Sequence[float], golden: Sequence[float]) -> int | None:
    """The first position after 0 whose token is accepted, given that the one before was, half as often as on the curve.

    A hard workload lowers all positions alike; a drafter that is fed wrong hidden states or a wrong cache breaks at
    one.
    """
    for position in range(1, min(len(rates), len(golden))):
        reached, expected = rates[position - 1], golden[position - 1]
        if reached * drafts < MIN_REACHED or expected <= 0:
            return None
        if rates[position] / reached < BREAK_FACTOR * golden[position] / expected:
            return position
    return None
