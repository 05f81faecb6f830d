"""What a profiler trace proves: which kernels ran, in which part of a layer, how many per layer, how long.

Reads the Chrome trace that torch's profiler writes (``ph: X`` events of category ``kernel``). The specialized path
of vLLM 0.33.0 is recognised by sentinels that never occur in a stock step: one ``KdaSplit`` per KDA layer (69) and
one ``MlaValue`` or ``DcpValue`` per MLA layer (24) in every step. Class names and counts: vLLM 0.33.0's source, checked
there against the published count of 13 kernels per KDA+MoE layer. Not yet run on a Blackwell trace.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3ctl.errors import UsageError

KDA_LAYERS, MLA_LAYERS = 69, 24
LAYERS = KDA_LAYERS + MLA_LAYERS
MAX_BYTES = 2_000_000_000
PUBLISHED = {"kernels_per_layer": (23, 13), "us_per_layer": (130.0, 69.0)}
"""Stock and specialized, TP16, batch 8, GB300 (vLLM's engineering post on K3 decode, 2026)."""

KDA_SENTINEL = ("KdaSplit",)
MLA_SENTINELS = ("MlaValue", "DcpValue")

PARTS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("embedding", ("EmbeddingGather",)),
    ("attention residuals", ("ClusterAttnRes", "attn_res")),
    (
        "KDA core",
        ("KdaSplit", "fused_kda_decode", "fused_recurrent_kda", "causal_conv1d", "layer_norm_gated"),
    ),
    ("MLA core", ("MlaQuery", "MlaValue", "DcpValue", "fmha", "splitkv", "split_kv", "flash_fwd")),
    ("o-projection and all-reduce", ("OprojProducer", "OprojUmma", "OprojConsumer", "OprojFused")),
    ("router and latent", ("MoeFront", "WsGemm", "RouteSitu", "grouped_topk")),
    ("shared expert", ("MoeShared", "SharedUmma", "SharedDown")),
    (
        "routed experts",
        ("ExpertsKernel", "ExpertsGroupKernel", "ClusterExperts", "humming", "marlin", "moe_"),
    ),
    ("MoE tail", ("WaveMoeTail", "MoeTail", "FusedAddMulticast", "LamportCopy", "AllReduceRMSNorm")),
    ("weight prefetch", ("L2Prefetch",)),
    ("collectives", ("nccl", "all_reduce", "allreduce", "cross_device_reduce")),
    ("projections", ("SplitKGemm", "SkinnyGemm", "gemm", "cutlass", "nvjet", "cublas")),
)
"""Part of a step → substrings of kernel names; the first match wins."""


@dataclass(frozen=True)
class Kernel:
    """One kernel execution. Times in microseconds on the trace's clock."""

    name: str
    start_us: float
    duration_us: float
    stream: str


@dataclass(frozen=True)
class TraceReport:
    """Summary of one rank's trace.

    steps: specialized steps counted by sentinels (0: none, or counts that do not fit together); consistent: both
    sentinels give the same whole number of steps; kernels_per_layer and us_per_layer: over specialized steps, from the
    first kernel to the last.
    """

    kernels: int
    steps: int
    consistent: bool
    kda_sentinels: int
    mla_sentinels: int
    kernels_per_layer: float | None
    us_per_layer: float | None
    by_part: Mapping[str, tuple[int, float]]
    by_stream: Mapping[str, int]

    @property
    def proves(self) -> bool:
        """Whether the trace alone proves specialized steps."""
        return self.consistent and self.steps > 0


def read(path: Path) -> list[Kernel]:
    """The kernels of a trace file (``.json`` or ``.json.gz``), in time order.

    Raises:
        UsageError: not a trace, cut off, or absurdly large.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(
                f"`{path}` is larger than {MAX_BYTES // 10**9} GB", hint="take a shorter profiler window"
            )
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8", errors="replace") as file:
            content = json.load(file)
    except (OSError, EOFError, ValueError) as error:
        raise UsageError(
            f"`{path}` is not a readable trace: {error}", hint="was the profiler stopped?"
        ) from None
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list):
        raise UsageError(f"`{path}` holds no traceEvents", hint="is it a torch profiler trace?")
    return sorted(_kernels(events), key=lambda kernel: kernel.start_us)


def summarize(kernels: Sequence[Kernel]) -> TraceReport:
    """Count, classify and time the kernels of one rank."""
    kda = sum(_has(k.name, KDA_SENTINEL) for k in kernels)
    mla = sum(_has(k.name, MLA_SENTINELS) for k in kernels)
    consistent = kda % KDA_LAYERS == 0 and mla % MLA_LAYERS == 0 and kda // KDA_LAYERS == mla // MLA_LAYERS
    steps = kda // KDA_LAYERS if consistent else 0
    parts: dict[str, tuple[int, float]] = {}
    for kernel in kernels:
        part = classify(kernel.name)
        count, total = parts.get(part, (0, 0.0))
        parts[part] = (count + 1, total + kernel.duration_us)
    inside = _span(kernels) if steps else []
    wall = max(k.start_us + k.duration_us for k in inside) - inside[0].start_us if inside else None
    return TraceReport(
        kernels=len(kernels),
        steps=steps,
        consistent=consistent,
        kda_sentinels=kda,
        mla_sentinels=mla,
        kernels_per_layer=len(inside) / (steps * LAYERS) if inside else None,
        us_per_layer=wall / (steps * LAYERS) if wall is not None else None,
        by_part=dict(sorted(parts.items(), key=lambda item: -item[1][1])),
        by_stream=Counter(k.stream for k in kernels),
    )


def statement(report: TraceReport, proved: bool) -> str:
    """One sentence for people, with the published figures beside the measured ones."""
    if not report.kernels:
        return "unknown — the trace holds no GPU kernels"
    counted = f"{report.kda_sentinels} KdaSplit, {report.mla_sentinels} MlaValue/DcpValue in {report.kernels} kernels"
    if not proved or report.kernels_per_layer is None or report.us_per_layer is None:
        return f"not engaged — {counted}: no whole number of steps (69 and 24 per step)"
    stock, fast = PUBLISHED["kernels_per_layer"]
    stock_us, fast_us = PUBLISHED["us_per_layer"]
    return (
        f"proved — {report.steps} specialized steps ({counted}); "
        f"{report.kernels_per_layer:.1f} kernels a layer (published {stock:.0f} → {fast:.0f}), "
        f"{report.us_per_layer:.1f} µs a layer (published {stock_us:.0f} → {fast_us:.0f}, TP16, batch 8, GB300)"
    )


def as_data(report: TraceReport) -> Mapping[str, Any]:
    """The report for scripts."""
    return {
        "kernels": report.kernels,
        "specialized_steps": report.steps,
        "kda_sentinels": report.kda_sentinels,
        "mla_sentinels": report.mla_sentinels,
        "kernels_per_layer": report.kernels_per_layer,
        "us_per_layer": report.us_per_layer,
        "by_part": {part: {"kernels": n, "us": us} for part, (n, us) in report.by_part.items()},
        "by_stream": dict(report.by_stream),
    }


def classify(name: str) -> str:
    """The part of a step that a kernel belongs to."""
    return next((part for part, marks in PARTS if _has(name, marks)), "other")


def _has(name: str, marks: tuple[str, ...]) -> bool:
    return any(mark in name for mark in marks)


def _span(kernels: Sequence[Kernel]) -> list[Kernel]:
    """The specialized steps: from the mixture before the first sentinel to the one after the last, else sentinel to
    sentinel.
    """
    sentinels = [i for i, k in enumerate(kernels) if _has(k.name, KDA_SENTINEL + MLA_SENTINELS)]
    mixtures = [i for i, k in enumerate(kernels) if _has(k.name, ("ClusterAttnRes",))]
    first = max((i for i in mixtures if i < sentinels[0]), default=sentinels[0])
    last = max((i for i in mixtures if i > sentinels[-1]), default=sentinels[-1])
    return list(kernels[first : last + 1])


def _kernels(events: Iterable[Any]) -> Iterable[Kernel]:
    for event in events:
        if not isinstance(event, Mapping) or event.get("ph") != "X" or event.get("cat") != "kernel":
            continue
        try:
            start, duration = float(event["ts"]), float(event["dur"])
        except (KeyError, TypeError, ValueError):
            continue
        arguments = event.get("args")
        stream = arguments.get("stream") if isinstance(arguments, Mapping) else None
        yield Kernel(
            str(event.get("name", "")),
            start,
            duration,
            str(stream if stream is not None else event.get("tid")),
        )
