"""Cuts the kernels of standard decode steps into layers.

Every layer mixes the residual stream twice, before its attention and before its MLP or experts, and one more mixture
closes the step. Each mixture is one kernel whose name holds ``attn_res`` (Triton or CUDA; vLLM 0.33.0), so what starts
between two of them is half a layer. Side streams join before the next mixture. Seen on an H200 trace.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from k3ctl.verdict.kernels import EXPERTS, Kernel, classify, has

MIXTURE = ("attn_res",)
ATTENTION = {"KDA core": "KDA", "MLA core": "MLA"}


@dataclass(frozen=True)
class LayerKind:
    """All layers of one kind, for example ``KDA + MoE``.

    kernels: mean per layer; us: median time from a layer's first mixture to the next layer's; by_stream: mean kernels
    per layer on each stream, most first.
    """

    name: str
    layers: int
    kernels: float
    us: float
    by_stream: Mapping[str, float]


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


def _kind(attention: Sequence[Kernel], rest: Sequence[Kernel]) -> str | None:
    parts = {classify(kernel.name) for kernel in attention}
    core = next((short for part, short in ATTENTION.items() if part in parts), None)
    if core is None:
        return None
    experts = any(classify(kernel.name) == EXPERTS for kernel in rest)
    return f"{core} + {'MoE' if experts else 'dense'}"


def _summary(name: str, members: Sequence[Sequence[Kernel]], ends: Sequence[float]) -> LayerKind:
    streams = Counter(kernel.stream for member in members for kernel in member)
    count = len(members)
    return LayerKind(
        name=name,
        layers=count,
        kernels=sum(map(len, members)) / count,
        us=statistics.median(end - member[0].start_us for member, end in zip(members, ends, strict=True)),
        by_stream={stream: number / count for stream, number in streams.most_common()},
    )
