"""Speed of a decode step, estimated: the roofline floor over the published fraction of it.

An estimate says on what it rests. Prompts are not in it, nor the drafter's own time on the standard path.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k3ctl.planning import budget
from k3ctl.planning.deployment import Deployment
from k3ctl.planning.roofline import RATES, Rates, Step, floor_seconds

BATCHES = (1, 2, 4, 8, 16, 32, 64)
PUBLISHED_TOK_S: Mapping[int, tuple[float, ...]] = {
    8: (193.3, 317.8, 540.6, 820.1, 1274.8, 1702.6, 2375.9),
    16: (256.4, 436.7, 702.5, 1157.9, 1758.3, 2550.9, 3606.1),
}
"""Specialized path, GB300, no speculation, decode only, by TP (anchors P3 and P2, 2026-09)."""
PUBLISHED_SPEEDUP: Mapping[int, tuple[float, ...]] = {
    8: (1.58, 1.50, 1.55, 1.45, 1.43, 1.33, 1.31),
    16: (1.88, 1.92, 1.81, 1.79, 1.71, 1.64, 1.62),
}
"""Over the standard path, same conditions."""
DRAFTER_FACTOR = 1.042
"""Specialized verify step with its drafter over the step alone, from anchor P1 (TP16, K=7, 842 tok/s)."""
ACCEPTANCE = {
    "sampled": (1.85, 2.51, 3.00, 3.36, 3.62, 3.75, 3.84, 4.00),
    "greedy": (1.84, 2.45, 2.87, 3.22, 3.44, 3.54, 3.78, 3.88),
}
"""Mean acceptance length for K = 1 … 8: coding prompts, B300, Inferact drafter (InferenceX)."""


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
    known = tp if tp in PUBLISHED_TOK_S else 8
    reached = []
    for batch, tok_s, speedup in zip(BATCHES, PUBLISHED_TOK_S[known], PUBLISHED_SPEEDUP[known], strict=True):
        step_s = batch / tok_s * (1 if specialized else speedup)
        floor = floor_seconds(Step(known, batch, split_projections=specialized), RATES["GB300"])
        reached.append(floor / step_s)
    if rows >= BATCHES[-1]:
        return reached[-1]
    at = bisect_left(BATCHES, rows)
    if BATCHES[at] == rows:
        return reached[at]
    low, high = BATCHES[at - 1], BATCHES[at]
    return reached[at - 1] + (reached[at] - reached[at - 1]) * (rows - low) / (high - low)


def acceptance_length(speculator: Mapping[str, Any] | None) -> tuple[float, str]:
    """(mean tokens per step and request, where that figure comes from)."""
    if not speculator:
        return 1.0, ""
    if (
        speculator.get("rejection_sample_method") == "synthetic"
        and "synthetic_acceptance_length" in speculator
    ):
        return float(speculator["synthetic_acceptance_length"]), "synthetic acceptance"
    column = "greedy" if speculator.get("draft_sample_method") == "greedy" else "sampled"
    drafts = min(int(speculator.get("num_speculative_tokens", 0)), 8)
    if drafts < 1:
        return 1.0, ""
    value = ACCEPTANCE[column][drafts - 1]
    return value, f"acceptance length {value} (coding prompts; yours will differ)"


def estimate(d: Deployment, *, concurrency: int, context: int, specialized: bool) -> Estimate | None:
    """The decode step of ``d``; None where no rates of the GPU are known (or there is none).

    ``specialized`` says whether the path is accepted; a step above 64 rows is standard all the same.
    """
    rates = RATES.get(d.hardware.product if d.hardware else next(iter(d.config.profile.requires.gpu), ""))
    if rates is None or d.parallel.tp not in (1, 2, 4, 8, 16):
        return None
    requests = max(concurrency // d.parallel.dp, 1)
    rows = budget.rows(requests, d.draft_tokens)
    fast = specialized and rows <= budget.SPECIALIZED_ROWS
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
        basis=_basis(d, rates, rows, fraction, fast, why),
    )


def _basis(d: Deployment, rates: Rates, rows: int, fraction: float, fast: bool, accepted: str) -> str:
    path = "specialized" if fast else "standard"
    tp = d.parallel.tp if d.parallel.tp in PUBLISHED_TOK_S else 8
    text = (
        f"byte floor at {rates.bytes_per_s / 1e12:.1f} TB/s ({rates.basis}), {fraction:.0%} of it reached as"
    )
    text += f" published for the {path} path on GB300 TP{tp}"
    if rows > BATCHES[-1]:
        text += f" at {BATCHES[-1]} rows ({rows} here)"
    if rates.name != "GB300":
        text += f"; nothing is published for {rates.name}, so this is a guess by analogy"
    if d.parallel.pp > 1 or d.parallel.dcp > 1 or d.parallel.expert_parallel:
        text += "; pipeline, context and expert parallel exchange is not modelled"
    return text + (f"; {accepted}" if accepted else "")
