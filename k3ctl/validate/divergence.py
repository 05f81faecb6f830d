"""Two generations side by side: where they part, by which margin, and how far their log probabilities lie apart. Pure.

Greedy answers of one model may differ without a fault where two tokens are nearly as likely: rounding decides, and
rounding depends on the batch. Whether a difference is that is seen in the margin, never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CPU_NATS = 1e-3
"""FP32 on the CPU engine (seen: 5e-5)."""
GPU_NATS = 0.25
"""BF16 activations with other kernels or another batch. Chosen, not measured on K3: see ``docs/how-to/validate.md``."""


@dataclass(frozen=True)
class Step:
    """One generated token: its log probability, and those of the most likely ones (nats)."""

    token: str
    logprob: float
    top: Mapping[str, float]


@dataclass(frozen=True)
class Comparison:
    """``at``: index of the first token that differs, None when one is not the other's beginning only by length.

    margin: how much likelier (nats) either side found its own token than the other's, the smaller of both; infinite
    where the other's is not among the most likely ones. deltas: of the log probabilities of the common tokens.
    """

    length: int
    common: int
    at: int | None
    margin: float | None
    mean_delta: float
    max_delta: float

    def near_tie(self, nats: float) -> bool:
        """They part where two tokens are equally likely within ``nats``."""
        return self.at is not None and self.margin is not None and self.margin <= nats

    def agrees(self, nats: float) -> bool:
        """Same tokens (or parted at a near tie) with log probabilities within ``nats``."""
        return (self.at is None or self.near_tie(nats)) and self.max_delta <= nats

    def json(self) -> dict[str, Any]:
        """Plain data."""
        margin = None if self.margin is None or math.isinf(self.margin) else round(self.margin, 6)
        return {
            "length": self.length,
            "common": self.common,
            "first_divergence": self.at,
            "margin_nats": margin,
            "mean_delta_nats": round(self.mean_delta, 6),
            "max_delta_nats": round(self.max_delta, 6),
        }

    @property
    def told(self) -> str:
        """One phrase for people."""
        if self.at is None:
            return f"{self.common} tokens equal, log probabilities within {self.max_delta:.2g} nats"
        margin = (
            "more than the answer tells"
            if self.margin is None or math.isinf(self.margin)
            else f"{self.margin:.3g} nats"
        )
        return f"differ from token {self.at} of {self.length} on, by a margin of {margin}"


def steps(answer: Mapping[str, Any], choice: int = 0) -> tuple[Step, ...]:
    """The tokens of a completion or chat completion that was asked with log probabilities; empty without them."""
    told = (answer["choices"][choice] or {}).get("logprobs") or {}
    if isinstance(told.get("content"), list):
        return tuple(
            Step(
                str(entry["token"]),
                float(entry["logprob"]),
                {str(other["token"]): float(other["logprob"]) for other in entry.get("top_logprobs") or ()},
            )
            for entry in told["content"]
        )
    tops = told.get("top_logprobs") or [{}] * len(told.get("tokens") or ())
    return tuple(
        Step(str(token), float(logprob), {str(name): float(value) for name, value in (top or {}).items()})
        for token, logprob, top in zip(
            told.get("tokens") or (), told.get("token_logprobs") or (), tops, strict=False
        )
    )


def compare(one: Sequence[Step], other: Sequence[Step]) -> Comparison:
    """``one`` beside ``other``, which may be shorter: a missing end is a difference without a margin."""
    both = list(zip(one, other, strict=False))
    at = next((i for i, (a, b) in enumerate(both) if a.token != b.token), None)
    common = len(both) if at is None else at
    deltas = [abs(a.logprob - b.logprob) for a, b in both[:common]]
    margin = None if at is None else _margin(*both[at])
    if at is None and len(one) != len(other):
        at = common
    return Comparison(
        length=max(len(one), len(other)),
        common=common,
        at=at,
        margin=margin,
        mean_delta=math.fsum(deltas) / len(deltas) if deltas else 0.0,
        max_delta=max((_finite(delta) for delta in deltas), default=0.0),
    )


def tolerance(platform: str) -> float:
    """How far log probabilities of one model may lie apart on a platform, in nats."""
    return CPU_NATS if platform == "cpu" else GPU_NATS


def _margin(a: Step, b: Step) -> float:
    sides = [
        mine.logprob - mine.top[theirs.token] for mine, theirs in ((a, b), (b, a)) if theirs.token in mine.top
    ]
    return min((abs(side) for side in sides), default=math.inf)


def _finite(delta: float) -> float:
    """NaN (two infinities, or a NaN of the server's) counts as infinitely far."""
    return math.inf if math.isnan(delta) else delta
