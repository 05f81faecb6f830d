"""What a profiler trace proves: which path its decode steps took, how many kernels a layer has, how long it takes.

The specialized path of vLLM 0.33.0 is recognised by sentinels that never occur in a standard step: one ``KdaSplit`` per
KDA layer (69) and one ``MlaValue`` or ``DcpValue`` per MLA layer (24) in every step, in the order of the layers. Class
names, counts and order: vLLM 0.33.0's source, checked there against the published count of 13 kernels per KDA+MoE
layer. Not yet run on a Blackwell trace; standard steps were seen on an H200.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from k3ctl.verdict.kernels import Kernel, classify, has
from k3ctl.verdict.layers import LayerKind, layers

LAYERS = 93
MLA_LAYERS = frozenset(i for i in range(LAYERS) if i % 4 == 3) | {LAYERS - 1}
STEP = "".join("M" if i in MLA_LAYERS else "K" for i in range(LAYERS))
"""Sentinels of one specialized step of Kimi K3 in time order: 69 times K, 24 times M. Only its end reads ``MM``."""
PUBLISHED = {"kernels_per_layer": (23, 13), "us_per_layer": (130.0, 69.0)}
"""Stock and specialized KDA + MoE layer, TP16, batch 8, GB300 (vLLM's engineering post on K3 decode, 2026)."""

KDA_SENTINEL = ("KdaSplit",)
MLA_SENTINELS = ("MlaValue", "DcpValue")
MIXTURE = ("ClusterAttnRes",)


@dataclass(frozen=True)
class TraceReport:
    """Summary of one rank's trace.

    steps: whole specialized steps; consistent: all sentinels belong to whole steps, or to one that the window cut at
    its start or end; kernels_per_layer and us_per_layer: over the specialized steps, from the first kernel to the last;
    layers: the layers of standard steps.
    """

    kernels: int
    steps: int
    consistent: bool
    kda_sentinels: int
    mla_sentinels: int
    kernels_per_layer: float | None
    us_per_layer: float | None
    layers: tuple[LayerKind, ...]
    by_part: Mapping[str, tuple[int, float]]
    by_stream: Mapping[str, int]

    @property
    def proves(self) -> bool:
        """Whether the trace alone proves specialized steps."""
        return self.consistent and self.steps > 0


def summarize(kernels: Sequence[Kernel]) -> TraceReport:
    """Count, classify and time the kernels of one rank (in time order)."""
    sentinels = [(i, _sentinel(k.name)) for i, k in enumerate(kernels) if _sentinel(k.name)]
    letters = "".join(letter for _, letter in sentinels)
    first, steps, consistent = _whole_steps(letters)
    inside: Sequence[Kernel] = ()
    if steps and consistent:
        ends = sentinels[first][0], sentinels[first + steps * LAYERS - 1][0]
        inside = _with_mixtures(kernels, *ends)
    wall = max(k.start_us + k.duration_us for k in inside) - inside[0].start_us if inside else None
    return TraceReport(
        kernels=len(kernels),
        steps=steps if consistent else 0,
        consistent=consistent,
        kda_sentinels=letters.count("K"),
        mla_sentinels=letters.count("M"),
        kernels_per_layer=len(inside) / (steps * LAYERS) if inside else None,
        us_per_layer=wall / (steps * LAYERS) if wall is not None else None,
        layers=layers(kernels),
        by_part=_by_part(kernels),
        by_stream=Counter(k.stream for k in kernels),
    )


def verdict(reports: Sequence[TraceReport]) -> str:
    """``proved``, ``not engaged`` or ``unknown``, for the traces of all ranks."""
    seen = [report for report in reports if report.kernels]
    if not seen:
        return "unknown"
    same = len({report.steps for report in seen}) == 1
    return "proved" if same and all(report.proves for report in seen) else "not engaged"


def statement(reports: Sequence[TraceReport]) -> str:
    """One sentence for people, with the published figures beside the measured ones."""
    grade = verdict(reports)
    if grade == "unknown":
        return "unknown — the trace holds no GPU kernels: it proves nothing about a GPU's decode path"
    report = next(report for report in reports if report.kernels)
    counted = f"{report.kda_sentinels} KdaSplit, {report.mla_sentinels} MlaValue/DcpValue in {report.kernels} kernels"
    stock, fast = PUBLISHED["kernels_per_layer"]
    stock_us, fast_us = PUBLISHED["us_per_layer"]
    if grade == "proved":
        return (
            f"proved — {report.steps} specialized steps ({counted}); "
            f"{report.kernels_per_layer:.1f} kernels a layer (published {stock:.0f} → {fast:.0f}), "
            f"{report.us_per_layer:.1f} µs a layer (published {stock_us:.0f} → {fast_us:.0f}, TP16, batch 8, GB300)"
        )
    if report.proves:
        return f"not engaged — ranks differ: {', '.join(str(r.steps) for r in reports)} specialized steps"
    if report.kda_sentinels or report.mla_sentinels:
        return f"not engaged — {counted}: not in the order of whole steps (69 and 24 per step)"
    text = f"not engaged — {counted}"
    if (moe := next((kind for kind in report.layers if kind.name == "KDA + MoE"), None)) is not None:
        text += (
            f"; a standard KDA + MoE layer has {moe.kernels:.0f} kernels and takes {moe.us:.1f} µs "
            f"(published {stock:.0f} → {fast:.0f} kernels, {stock_us:.0f} → {fast_us:.0f} µs, TP16, batch 8, GB300)"
        )
    return text


def as_data(report: TraceReport) -> Mapping[str, Any]:
    """The report for scripts."""
    return {
        "kernels": report.kernels,
        "specialized_steps": report.steps,
        "kda_sentinels": report.kda_sentinels,
        "mla_sentinels": report.mla_sentinels,
        "kernels_per_layer": report.kernels_per_layer,
        "us_per_layer": report.us_per_layer,
        "standard_layers": [asdict(kind) for kind in report.layers],
        "by_part": {part: {"kernels": n, "us": us} for part, (n, us) in report.by_part.items()},
        "by_stream": dict(report.by_stream),
    }


def _sentinel(name: str) -> str:
    return "K" if has(name, KDA_SENTINEL) else "M" if has(name, MLA_SENTINELS) else ""


def _whole_steps(letters: str) -> tuple[int, int, bool]:
    """(position of the first whole step, whole steps, whether the rest is the end of one and the start of another)."""
    first = max(letters.find(STEP), 0)
    steps = 0
    while letters.startswith(STEP, first + steps * LAYERS):
        steps += 1
    before, after = letters[:first], letters[first + steps * LAYERS :]
    return first, steps, STEP.endswith(before) and STEP.startswith(after)


def _with_mixtures(kernels: Sequence[Kernel], first: int, last: int) -> Sequence[Kernel]:
    """From the mixture before kernel ``first`` to the one after kernel ``last``, where there are such."""
    mixtures = [i for i, kernel in enumerate(kernels) if has(kernel.name, MIXTURE)]
    start = max((i for i in mixtures if i < first), default=first)
    stop = min((i for i in mixtures if i > last), default=last)
    return kernels[start : stop + 1]


def _by_part(kernels: Sequence[Kernel]) -> Mapping[str, tuple[int, float]]:
    parts: dict[str, tuple[int, float]] = {}
    for kernel in kernels:
        part = classify(kernel.name)
        count, total = parts.get(part, (0, 0.0))
        parts[part] = (count + 1, total + kernel.duration_us)
    return dict(sorted(parts.items(), key=lambda item: -item[1][1]))
