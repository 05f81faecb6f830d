"""Kernels of a torch profiler trace: reading them, and which part of a decode step each belongs to.

Reads the Chrome trace that torch's profiler writes (``ph: X`` events of category ``kernel``). Names are those of vLLM
0.33.0: of its specialized path from its source, of its standard path on Hopper from an H200 trace.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3ctl import files
from k3ctl.errors import UsageError

MAX_BYTES = 2_000_000_000

EXPERTS = "routed experts"
KDA = "KDA core"
O_PROJECTION = "o-projection and all-reduce"

PARTS: Sequence[tuple[str, tuple[str, ...]]] = (
    (
        "state and block tables",
        ("mamba", "slot_mapping", "block_table", "pos_seq_lens", "post_update", "aligned_state", "accepted",
            "prepare_varlen",),
    ),
    ("embedding", ("EmbeddingGather", "vectorized_gather")),
    ("attention residuals", ("ClusterAttnRes", "AttnResCluster", "attn_res")),
    (
        KDA,
        (
            "KdaSplit", "KdaDecodeKernel", "KdaStreamKernel", "kda_decode",
            "fused_kda", "recurrent_kda", "flash_kda", "chunk_kda",
            "causal_conv1d", "layer_norm_gated",
        ),
    ),
    (
        "MLA core",
        (
            "MlaQuery", "MlaValue", "DcpValue", "MLADecode", "FlashAttnFwd", "flash_fwd", "fmha", "splitkv", "split_kv",
            "fused_mul_sigmoid",
        ),
    ),
    (O_PROJECTION, ("OprojProducer", "OprojUmma", "OprojConsumer", "OprojFused")),
    (
        "router and latent",
        ("MoeFront", "WsGemm", "RouteSitu", "MoeRoute", "topk", "LLBf16", "moe_align", "count_and_sort"),
    ),
    ("shared expert", ("MoeShared", "SharedUmma", "SharedDown")),
    (
        EXPERTS,
        (
            "ExpertsKernel", "ExpertsGroupKernel", "ClusterExperts", "ExpertsGateUp", "ExpertsDown",
            "humming", "process_input", "marlin",
            "bmm_MxE", "moe_",
        ),
    ),
    ("activation", ("situ_and_mul", "DenseSitu")),
    ("MoE tail", ("WaveMoeTail", "MoeTail", "FusedAddMulticast", "LamportCopy", "AllReduceRMSNorm")),
    ("weight prefetch", ("L2Prefetch",)),
    ("collectives", ("nccl", "all_reduce", "allreduce", "cross_device_reduce")),
    ("projections", ("Gemm", "gemm", "cutlass", "nvjet", "cublas")),
    ("norms", ("rms_norm", "RMSNorm", "layernorm")),
    ("sampling", ("gumbel", "sample", "argmax", "ArgMax", "softmax")),
)  # fmt: skip
"""Part of a step → substrings of kernel names; the first match wins."""

_CUTE_CLASS = re.compile(r"([A-Z]\w*?)_object_at")
"""In the name of a CuTe DSL kernel, which also holds the path of its module: that says nothing about its part."""


@dataclass(frozen=True)
class Kernel:
    """One kernel execution. Times in microseconds on the trace's clock."""

    name: str
    start_us: float
    duration_us: float
    stream: str


def read(path: Path) -> list[Kernel]:
    """The kernels of a trace file (``.json`` or ``.json.gz``), in time order.

    Raises:
        UsageError: not a trace, cut off, or absurdly large.
    """
    try:
        content = json.loads(files.unpacked(path, MAX_BYTES).decode(errors="replace"))
    except files.TooLarge:
        raise UsageError(
            f"`{path}` holds more than {MAX_BYTES // 10**9} GB", hint="take a shorter profiler window"
        ) from None
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise UsageError(
            f"`{path}` is not a readable trace: {files.reason(error)}", hint="was the profiler stopped?"
        ) from None
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list):
        raise UsageError(f"`{path}` holds no traceEvents", hint="is it a torch profiler trace?")
    return sorted(_kernels(events), key=lambda kernel: kernel.start_us)


@functools.cache
def classify(name: str) -> str:
    """The part of a step that a kernel belongs to."""
    return next((part for part, marks in PARTS if has(name, marks)), "other")


@functools.cache  # a window holds a hundred thousand kernels of a few dozen names
def has(name: str, marks: tuple[str, ...]) -> bool:
    """Whether a kernel's name holds one of ``marks``; of a CuTe DSL kernel only the class counts."""
    told = _told(name)
    return any(mark in told for mark in marks)


@functools.cache
def is_class(name: str, classes: tuple[str, ...]) -> bool:
    """Whether a kernel is of one of ``classes``, and not only of one whose name holds it."""
    told = _told(name)
    return any(re.search(rf"{mark}(?![A-Za-z0-9_])", told) for mark in classes if mark in told)


@functools.cache
def _told(name: str) -> str:
    cute = _CUTE_CLASS.search(name)
    return f"cutlass {cute[1]}" if cute else name


def _kernels(events: Iterable[Any]) -> Iterable[Kernel]:
    for event in events:
        if not isinstance(event, Mapping) or event.get("ph") != "X" or event.get("cat") != "kernel":
            continue
        try:
            start, duration = float(event["ts"]), float(event["dur"])
        except (KeyError, TypeError, ValueError):
            continue
        if not (math.isfinite(start) and 0 <= duration < math.inf):
            continue
        arguments = event.get("args")
        stream = arguments.get("stream") if isinstance(arguments, Mapping) else None
        yield Kernel(
            str(event.get("name", "")),
            start,
            duration,
            str(stream if stream is not None else event.get("tid")),
        )
