"""NCCL and the RDMA ports it uses."""

from __future__ import annotations

from collections.abc import Iterator

from k3ctl.checks.finding import Applies, Area, Hit, Severity, Source, rule
from k3ctl.checks.products import GPU_KINDS
from k3ctl.checks.view import NodeView
from k3ctl.facts.products import Kind
from k3ctl.host.types import Library

NVLS_HANG = Source(
    "https://github.com/vast-ai/base-image/pull/233", "2026-07-28", "K3 on 8 × B300, NCCL 2.30.7"
)
NVLS_HANG_UPSTREAM = Source("https://github.com/NVIDIA/nccl/issues/2167", "2026-05-10")
RAIL_DOWN = Source("https://github.com/SemiAnalysisAI/InferenceX/blob/main/perf-changelog.yaml", "2026-09")
ACTIVE = "ACTIVE"
IMAGE_VARIABLE = "NCCL_VERSION of the image"
FIRST_NCCL = "2.29.7"
"""The first NCCL with ``ncclCommSuspend``, which vLLM binds from 0.33.0 on."""
NCCL_TOO_OLD = Applies("NCCL", "", FIRST_NCCL)
VLLM_BINDS = Applies("vLLM", "0.33.0")


def _nccl(view: NodeView) -> list[Library]:
    return [library for library in view.host.libraries if library.name == "nccl"] if view.host else []


@rule(
    "nccl.nvls-hang-reported",
    Severity.WARN,
    Area.NVLINK,
    "This NCCL was reported to hang on this product",
    blocks="the start, in that report: all ranks stop at `NVLS tuning` and use no GPU",
    remedy="use an NCCL from 2.29.7 to below 2.30.4 (2.28.9 did not hang, but vLLM 0.33 cannot use it itself); "
    "NCCL_NVLS_ENABLE=0 also avoids it and costs multicast",
    sources=(NVLS_HANG, NVLS_HANG_UPSTREAM),
    applies=Applies("NCCL", "2.30.4", "2.31"),
    kinds=frozenset({Kind.HGX8}),
)
def nvls_hang(view: NodeView) -> Iterator[Hit]:
    first = next(iter(_nccl(view)), None)
    if view.product.chip == "B300" and first and first.version:
        yield Hit(f"NCCL {first.version} ({first.origin})")


@rule(
    "nccl.pynccl-off",
    Severity.WARN,
    Area.ENGINE,
    "vLLM 0.33 cannot use this NCCL itself: pynccl is silently off",
    blocks="pipeline parallelism without k3ctl's plugin: wrong tokens, then illegal memory accesses",
    remedy="load NCCL 2.29.7 or newer; `k3ctl serve` with the plugin k3_runtime carries a fix for pipeline stages",
    sources=(
        Source(
            "https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/distributed/device_communicators/pynccl_wrapper.py",
            "2026-11",
            "ncclCommSuspend is bound and its absence swallowed; seen on 2 H200s with NCCL 2.28.9, TP1 x PP2",
        ),
    ),
    applies=Applies("NCCL", "", FIRST_NCCL),
    kinds=GPU_KINDS,
)
def pynccl_off(view: NodeView) -> Iterator[Hit]:
    if old := old_nccl(view):
        yield Hit(f"{old}, {FIRST_NCCL} is the first that vLLM 0.33 can use")


def old_nccl(view: NodeView) -> str:
    """The NCCL that would be loaded, where it is older than vLLM 0.33 needs and no older vLLM is installed."""
    first = next(iter(_nccl(view)), None)
    vllm = view.host.packages.get("vllm", "") if view.host else ""
    of_image = first is not None and first.origin == IMAGE_VARIABLE  # what was built in, not what is loaded
    if first is None or of_image or not first.version or (vllm and not VLLM_BINDS.holds(vllm)):
        return ""
    return f"NCCL {first.version} ({first.origin})" if NCCL_TOO_OLD.holds(first.version) else ""


@rule(
    "nccl.shadowed",
    Severity.WARN,
    Area.NVLINK,
    "Another NCCL is loaded than the installed package",
    blocks="knowing which NCCL runs: the pin of the package does not count",
    remedy="take the directory out of LD_LIBRARY_PATH, or unset VLLM_NCCL_SO_PATH",
    sources=(NVLS_HANG,),
    kinds=GPU_KINDS,
)
def shadowed(view: NodeView) -> Iterator[Hit]:
    found = _nccl(view)
    wheel = next((library for library in found if library.origin == "wheel"), None)
    if wheel and found[0] is not wheel and found[0].version != wheel.version:
        yield Hit(
            f"{found[0].path} ({found[0].version or 'version unknown'}) before the wheel's {wheel.version}"
        )


@rule(
    "nic.port-down",
    Severity.WARN,
    Area.MULTI_NODE,
    "An RDMA port is not active",
    blocks="full network bandwidth; jobs that use this port hang or crawl",
    remedy="bring the port up, or leave it out with NCCL_IB_HCA",
    sources=(RAIL_DOWN,),
    kinds=GPU_KINDS,
)
def port_down(view: NodeView) -> Iterator[Hit]:
    for nic in view.node.nics:
        if nic.state and nic.state.upper() != ACTIVE:  # a topology matrix names ports without their state
            yield Hit(f"state {nic.state}", nic.name)
