"""Cuts the kernels of standard decode steps into layers.

Every layer mixes the residual stream twice, before its attention and before its MLP or experts, and one more mixture
closes the step. Each mixture is one kernel: ``attn_res`` (Triton or CUDA; vLLM 0.33.0), or ours, so what starts
between two of them is half a layer. Side streams join before the next mixture. Seen on an H200 trace.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence, Set
from dataclasses import dataclass

from k3ctl.verdict.kernels import EXPERTS, Kernel, classify, has

MIXTURE = ("attn_res", "AttnResCluster")
ATTENTION = {"KDA core": "KDA", "MLA core": "MLA"}

PROVED_SHARE = 0.95
"""Share of the decode steps, or of their layers, that a proof needs."""
BESIDE = frozenset({"sampling", "state and block tables", "embedding"})
"""Parts of a step that lie outside its layers, on either path."""
OUTSIDE_SHARE = 0.5
"""Share of GPU time outside of what was recognised above which a trace shows mostly something else."""


@dataclass(frozen=True)
class LayerKind:
    """All layers of one kind, for example ``KDA + MoE``.

    The rest are medians per layer: kernels; streams they are on; kernel_us, the sum of their durations; us, the time
    from a layer's first mixture to the next layer's. kernel_us above us is work that ran side by side. The replay of a
    graph numbers the streams of its branches anew in every layer, so only their count says something.
    """

    name: str
    layers: int
    kernels: float
    streams: float
    kernel_us: float
    us: float


def layers(kernels: Sequence[Kernel]) -> tuple[LayerKind, ...]:
    """Whole layers among ``kernels`` (in time order) by kind, most first; empty without mixtures."""
    found: dict[str, list[Sequence[Kernel]]] = {}
    ends: dict[str, list[float]] = {}
    marks = [i for i, kernel in enumerate(kernels) if has(kernel.name, MIXTURE)]
    for first, middle, last in zip(marks, marks[1:], marks[2:], strict=False):
        name = _kind(kernels[first:middle], kernels[middle:last])
        if name is not None:
            found.setdefault(name, []).append(kernels[first:last])
            ends.setdefault(name, []).append(kernels[last].start_us)
    kinds = [_summary(name, found[name], ends[name]) for name in found]
    return tuple(sorted(kinds, key=lambda kind: -kind.layers))


def outside(kernels: Sequence[Kernel], within: Set[int]) -> float:
    """Share of GPU time, or of the kernels if that is more, that is neither ``within`` nor between two steps."""
    others = [k for i, k in enumerate(kernels) if i not in within and classify(k.name) not in BESIDE]
    total = sum(kernel.duration_us for kernel in kernels)
    time = sum(kernel.duration_us for kernel in others) / total if total > 0 else 1.0
    return max(time, len(others) / len(kernels))


def _kind(attention: Sequence[Kernel], rest: Sequence[Kernel]) -> str | None:
    parts = {classify(kernel.name) for kernel in attention}
    core = next((short for part, short in ATTENTION.items() if part in parts), None)
    if core is None:
        return None
    experts = any(classify(kernel.name) == EXPERTS for kernel in rest)
    return f"{core} + {'MoE' if experts else 'dense'}"


def _summary(name: str, members: Sequence[Sequence[Kernel]], ends: Sequence[float]) -> LayerKind:
    return LayerKind(
        name=name,
        layers=len(members),
        kernels=statistics.median(map(len, members)),
        streams=statistics.median(len({kernel.stream for kernel in member}) for member in members),
        kernel_us=statistics.median(sum(kernel.duration_us for kernel in member) for member in members),
        us=statistics.median(end - member[0].start_us for member, end in zip(members, ends, strict=True)),
    )
