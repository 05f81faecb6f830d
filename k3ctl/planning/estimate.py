"""Speed of a decode step, estimated: the roofline floor over the published fraction of it.

An estimate says on what it rests. Prompts are not in it, nor the drafter's own time on the standard path.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k3ctl.facts.k3 import SPECIALIZED_ROWS
from k3ctl.facts.products import PRODUCTS, GpuProduct, Rates
from k3ctl.facts.published import DecodeCurve, acceptance, decode_curve
from k3ctl.planning import budget
from k3ctl.planning.proposal import Proposal
from k3ctl.planning.roofline import Step, floor_seconds

CALIBRATED_GPU, FALLBACK_TP = "GB300", 8
"""Whose published curves tell the fraction of the floor that is reached, and the curve for TP sizes without one."""
DRAFTER_FACTOR = 1.042
"""Specialized verify step with its drafter over the step alone, from anchor P1 (TP16, K=7, 842 tok/s)."""


@dataclass(frozen=True)
class Estimate:
    """A decode step at one concurrency."""

    path: str
    """``specialized`` or ``standard``."""
    concurrency: int
    context: int
    step_ms: float
    floor_ms: float
    acceptance_length: float
    basis: str

    @property
    def tok_s(self) -> float:
        """Output tokens per second of the whole server."""
        return self.concurrency * self.acceptance_length / self.step_ms * 1e3

    @property
    def tok_s_per_user(self) -> float:
        """Output tokens per second of one request."""
        return self.tok_s / self.concurrency

    def json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "label": "estimate",
            "path": self.path,
            "concurrency": self.concurrency,
            "context_tokens": self.context,
            "step_ms": round(self.step_ms, 2),
            "floor_ms": round(self.floor_ms, 2),
            "fraction_of_floor": round(self.floor_ms / self.step_ms, 3),
            "acceptance_length": self.acceptance_length,
            "tok_s": round(self.tok_s, 1),
            "tok_s_per_user": round(self.tok_s_per_user, 1),
            "basis": self.basis,
        }


def fraction_of_floor(tp: int, rows: int, *, specialized: bool) -> float:
    """Published fraction of the floor that a step of ``rows`` rows reaches, interpolated between batches."""
    curve, rates = _calibration(tp), PRODUCTS[CALIBRATED_GPU].rates
    assert rates is not None
    reached = []
    for batch, tok_s, speedup in zip(curve.batches, curve.tok_s, curve.speedup, strict=True):
        step_s = batch / tok_s * (1 if specialized else speedup)
        floor = floor_seconds(Step(curve.tp, batch, split_projections=specialized), rates)
        reached.append(floor / step_s)
    if rows >= curve.batches[-1]:
        return reached[-1]
    at = bisect_left(curve.batches, rows)
    if curve.batches[at] == rows:
        return reached[at]
    low, high = curve.batches[at - 1], curve.batches[at]
    return reached[at - 1] + (reached[at] - reached[at - 1]) * (rows - low) / (high - low)


def _calibration(tp: int) -> DecodeCurve:
    curve = decode_curve(CALIBRATED_GPU, tp) or decode_curve(CALIBRATED_GPU, FALLBACK_TP)
    assert curve is not None
    return curve


def acceptance_length(speculator: Mapping[str, Any] | None) -> tuple[float, str]:
    """(mean tokens per step and request, where that figure comes from)."""
    if not speculator:
        return 1.0, ""
    if (
        speculator.get("rejection_sample_method") == "synthetic"
        and "synthetic_acceptance_length" in speculator
    ):
        return float(speculator["synthetic_acceptance_length"]), "synthetic acceptance"
    greedy = speculator.get("draft_sample_method") == "greedy"
    drafts = min(int(speculator.get("num_speculative_tokens", 0)), len(acceptance().sampled))
    value = acceptance().length(drafts, greedy=greedy)
    if drafts < 1 or value is None:
        return 1.0, ""
    return value, f"acceptance length {value} (coding prompts; yours will differ)"


def estimate(d: Proposal, *, concurrency: int, context: int, specialized: bool) -> Estimate | None:
    """The decode step of ``d``; None where no rates of the GPU are known (or there is none).

    ``specialized`` says whether the path is accepted; a step above 64 rows is standard all the same.
    """
    product = PRODUCTS.get(
        d.hardware.product if d.hardware else next(iter(d.config.profile.requires.gpu), "")
    )
    rates = product.rates if product else None
    if product is None or rates is None or d.parallel.tp not in (1, 2, 4, 8, 16):
        return None
    requests = max(concurrency // d.parallel.dp, 1)
    rows = budget.rows(requests, d.draft_tokens)
    fast = specialized and rows <= SPECIALIZED_ROWS
    step = Step(
        tp=d.parallel.tp,
        requests=requests,
        context=context,
        query=d.query,
        kv_bytes=1 if d.fp8_kv else 2,
        dcp=d.parallel.dcp,
        split_projections=fast,
    )
    floor_s = floor_seconds(step, rates)
    fraction = fraction_of_floor(d.parallel.tp, rows, specialized=fast)
    drafter = DRAFTER_FACTOR if fast and d.method else 1.0
    accepted, why = acceptance_length(d.speculator)
    return Estimate(
        path="specialized" if fast else "standard",
        concurrency=concurrency,
        context=context,
        step_ms=floor_s / fraction * drafter * 1e3,
        floor_ms=floor_s * 1e3,
        acceptance_length=accepted,
        basis=_basis(d, product, rates, rows, fraction, fast, why),
    )


def _basis(
    d: Proposal, product: GpuProduct, rates: Rates, rows: int, fraction: float, fast: bool, accepted: str
) -> str:
    path = "specialized" if fast else "standard"
    curve = _calibration(d.parallel.tp)
    text = (
        f"byte floor at {rates.bytes_per_s / 1e12:.1f} TB/s ({rates.basis}), {fraction:.0%} of it reached as"
    )
    text += f" published for the {path} path on {curve.gpu} TP{curve.tp}"
    if rows > curve.batches[-1]:
        text += f" at {curve.batches[-1]} rows ({rows} here)"
    if product.token != CALIBRATED_GPU:
        text += f"; nothing is published for {product.token}, so this is a guess by analogy"
    if d.parallel.pp > 1 or d.parallel.dcp > 1 or d.parallel.expert_parallel:
        text += "; pipeline, context and expert parallel exchange is not modelled"
    return text + (f"; {accepted}" if accepted else "")
