"""Published figures that a live reading is compared with. None of them is ours.

Acceptance: the golden acceptance-length curve of InferenceX for Kimi K3 with DSpark (coding prompts, B300,
probabilistic drafts, block rejection; `golden_al_distribution/kimik3_dspark.yaml`). Step times: the vLLM post
on the specialized decode path, decode-only tok/s of the whole tensor-parallel group on GB300.
"""

from __future__ import annotations

from dataclasses import dataclass

GOLDEN_ACCEPTANCE_LENGTH = {0: 1.0, 1: 1.85, 2: 2.51, 3: 3.00, 4: 3.36, 5: 3.62, 6: 3.75, 7: 3.84, 8: 4.00}
"""Draft tokens K → tokens per verify step, the bonus token included."""

GOLDEN_SOURCE = "InferenceX golden AL, coding, B300, probabilistic/block"

ROW_LIMIT = 64
"""Query rows up to which a decode step can be specialized (vLLM 0.33.0, Kimi K3)."""

_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_DECODE_TOK_S = {
    16: (256.4, 436.7, 702.5, 1157.9, 1758.3, 2550.9, 3606.1),
    8: (193.3, 317.8, 540.6, 820.1, 1274.8, 1702.6, 2375.9),
}
_SPEEDUP = {16: (1.88, 1.92, 1.81, 1.79, 1.71, 1.64, 1.62), 8: (1.58, 1.50, 1.55, 1.45, 1.43, 1.33, 1.31)}
_AL6_TOK_S = (842.0, 488.0)
"""GB300 TP16, K=7, batch 1, synthetic acceptance length 6: specialized and standard."""


@dataclass(frozen=True)
class Deployment:
    """What the operator says is being served; empty or None where unknown.

    ``gpu`` is a product token (``gb300``, ``b300``, ``h200``), ``draft_tokens`` is K, ``speculator`` the method
    (``dspark``, ``mtp``).
    """

    name: str = ""
    gpu: str = ""
    tensor_parallel: int | None = None
    draft_tokens: int | None = None
    speculator: str = ""


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
    source: str = "vLLM blog, specialized decode, 2026-09"


def golden(deployment: Deployment, platform: str, draft_tokens: int) -> Golden | None:
    """The golden acceptance for K drafts; None for another drafter than DSpark, and for the tiny CPU model.

    ``platform`` is the witness's (``cuda``, ``cpu``, empty when unknown).
    """
    if deployment.speculator not in {"", "dspark"} or platform == "cpu" or draft_tokens < 1:
        return None
    length = GOLDEN_ACCEPTANCE_LENGTH.get(draft_tokens)
    return Golden(length, golden_rates(draft_tokens)) if length else None


def golden_rates(draft_tokens: int) -> tuple[float, ...]:
    """Acceptance rate per draft position 0 … K−1: the increments of the golden curve (our derivation)."""
    lengths = GOLDEN_ACCEPTANCE_LENGTH
    return tuple(round(lengths[k] - lengths[k - 1], 2) for k in range(1, draft_tokens + 1) if k in lengths)


def step_anchor(deployment: Deployment, draft_tokens: int, batch: float) -> StepAnchor | None:
    """The published step time for this GPU, TP and K at the next listed batch size, if there is one."""
    tp = deployment.tensor_parallel
    if deployment.gpu != "gb300" or tp not in _DECODE_TOK_S or batch > _BATCHES[-1]:
        return None
    if draft_tokens == 7 and tp == 16 and batch <= 1:
        fast, slow = (6.0 / tok_s * 1e3 for tok_s in _AL6_TOK_S)
        return StepAnchor("gb300", 16, 7, 1, fast, slow)
    if draft_tokens:
        return None
    at = next(i for i, listed in enumerate(_BATCHES) if listed >= batch)
    fast = _BATCHES[at] / _DECODE_TOK_S[tp][at] * 1e3
    return StepAnchor("gb300", tp, 0, _BATCHES[at], fast, fast * _SPEEDUP[tp][at])
