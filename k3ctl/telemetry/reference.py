"""Published figures that a live reading is compared with. None of them is ours; their source is ``facts.published``.

Acceptance: the golden acceptance-length curve for Kimi K3 with DSpark. Step times: decode-only tok/s of a whole
tensor-parallel group on the specialized path.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3ctl.deployment import Deployment
from k3ctl.facts.published import Anchor, acceptance, anchors, decode_curve


@dataclass(frozen=True)
class Golden:
    """What the golden curve says for K drafts: tokens per step, and the rate per draft position."""

    length: float
    rates: tuple[float, ...]


@dataclass(frozen=True)
class StepAnchor:
    """Published decode step time in ms on either path, at ``batch`` sequences and K drafts."""

    gpu: str
    tensor_parallel: int
    draft_tokens: int
    batch: int
    specialized_ms: float
    standard_ms: float
    source: str


def golden(deployment: Deployment, platform: str, draft_tokens: int) -> Golden | None:
    """The golden acceptance for K drafts; None for another drafter than DSpark, and for the tiny CPU model.

    ``platform`` is the witness's (``cuda``, ``cpu``, empty when unknown).
    """
    if deployment.speculator not in {None, "dspark"} or platform == "cpu" or draft_tokens < 1:
        return None
    length = acceptance().length(draft_tokens)
    return Golden(length, golden_rates(draft_tokens)) if length else None


def golden_rates(draft_tokens: int) -> tuple[float, ...]:
    """Acceptance rate per draft position 0 … K−1: the increments of the golden curve (our derivation)."""
    lengths = (1.0, *acceptance().sampled)
    return tuple(round(lengths[k] - lengths[k - 1], 2) for k in range(1, min(draft_tokens + 1, len(lengths))))


def step_anchor(deployment: Deployment, draft_tokens: int, batch: float) -> StepAnchor | None:
    """The published step time for this GPU, TP and K at the next listed batch size, if there is one."""
    product, tp = deployment.product, deployment.tensor_parallel_size
    if product is None or tp is None:
        return None
    if draft_tokens:
        return _with_drafts(product.token, tp, draft_tokens, batch)
    curve = decode_curve(product.token, tp)
    at = next((i for i, listed in enumerate(curve.batches) if listed >= batch), None) if curve else None
    if curve is None or at is None:
        return None
    fast_ms = curve.batches[at] / curve.tok_s[at] * 1e3
    return StepAnchor(
        curve.gpu, tp, 0, curve.batches[at], fast_ms, fast_ms * curve.speedup[at], source=curve.source
    )


def _with_drafts(gpu: str, tp: int, draft_tokens: int, batch: float) -> StepAnchor | None:
    """A published point with synthetic acceptance, whose step time follows from its acceptance length."""

    def fits(entry: Anchor) -> bool:
        conditions = (entry.gpu, entry.tensor_parallel_size, entry.num_speculative_tokens, entry.path)
        return conditions == (gpu, tp, draft_tokens, "specialized") and entry.acceptance_length is not None

    for entry in filter(fits, anchors()):
        for row in entry.rows:
            if row.stock and row.concurrency and batch <= row.concurrency:
                tokens = row.concurrency * (entry.acceptance_length or 1.0)
                fast_ms, slow_ms = tokens / row.value * 1e3, tokens / row.stock * 1e3
                return StepAnchor(
                    gpu, tp, draft_tokens, row.concurrency, fast_ms, slow_ms, source=entry.cited
                )
    return None
