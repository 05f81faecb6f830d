"""The run-time probe: did bytes really travel between the GPUs, at the rate that the links promise."""

from __future__ import annotations

from collections.abc import Iterator

from k3ctl.checks.finding import Area, Hit, Severity, Source, rule
from k3ctl.checks.products import GPU_KINDS, SWITCHED
from k3ctl.checks.view import NodeView
from k3ctl.gpus.types import Gpu
from k3ctl.host.types import Copy
from k3ctl.host.values import known

LINKS_ARE_NO_PROOF = Source("https://github.com/Dstack-TEE/dstack/pull/1167", "2026-09-02")
MEASURED = Source(
    "https://github.com/NVIDIA/nccl/issues/1264",
    "2024",
    "HGX H100: 371-377 GB/s with peer access, 37 GB/s without",
)
BUSY_MANAGER = Source(
    "https://github.com/meta-pytorch/torchcomms/pull/3130", "2026-07-14", "802 for some seconds"
)
SLOW, BROKEN = 0.65, 0.25
"""Share of the raw link rate below which a copy is slow, and below which it cannot have used NVLink.

The copy engine reaches about 0.78 of the raw rate (375 of 478 GB/s on HGX H100); PCIe gives about 0.1.
"""
GROUPS = "every tensor-parallel group over these GPUs"


def _copies(view: NodeView) -> tuple[Copy, ...]:
    return view.host.probe.copies if view.host and view.host.probe else ()


def _where(copy: Copy) -> str:
    return f"GPU {copy.source} → {copy.target}"


def raw_gb_s(gpu: Gpu) -> float:
    """Sum of the rates of a GPU's active links in one direction, GB/s; 0 when unknown."""
    return sum(known(link.speed_mb_s, 0) for link in gpu.links if known(link.state, 0)) / 1e3


def expected_gb_s(view: NodeView, copy: Copy) -> float:
    """Raw NVLink rate between two GPUs: the slower end on a switch, 0 where there is no expectation."""
    if view.product.kind not in SWITCHED:
        return 0.0
    gpus = {gpu.index: gpu for gpu in view.node.present}
    ends = [raw_gb_s(gpus[index]) for index in (copy.source, copy.target) if index in gpus]
    return min(ends) if len(ends) == 2 else 0.0


@rule(
    "probe.failed",
    Severity.FAIL,
    Area.NVLINK,
    "The copy probe did not finish",
    blocks=GROUPS,
    remedy="read the CUDA error; 802 means that the fabric manager is not ready",
    sources=(BUSY_MANAGER, LINKS_ARE_NO_PROOF),
    kinds=GPU_KINDS,
)
def failed(view: NodeView) -> Iterator[Hit]:
    if view.host and view.host.probe and view.host.probe.error:
        yield Hit(f"{view.host.probe.error} ({len(_copies(view))} pairs done)")
    for copy in _copies(view):
        if copy.error:
            yield Hit(copy.error, _where(copy))


@rule(
    "probe.wrong-data",
    Severity.FAIL,
    Area.NVLINK,
    "A copy between GPUs delivered other bytes",
    blocks=GROUPS,
    remedy="take both GPUs out of service; read the kernel log for Xids",
    sources=(LINKS_ARE_NO_PROOF,),
    kinds=GPU_KINDS,
)
def wrong_data(view: NodeView) -> Iterator[Hit]:
    for copy in _copies(view):
        if copy.correct is False:
            yield Hit("samples of the target differ from the source", _where(copy))


@rule(
    "probe.no-peer-access",
    Severity.FAIL,
    Area.NVLINK,
    "CUDA grants no peer access between these GPUs",
    blocks=GROUPS,
    remedy="check the fabric state and the fabric manager; a container needs all GPUs of the group",
    sources=(LINKS_ARE_NO_PROOF,),
    kinds=SWITCHED,
)
def no_peer_access(view: NodeView) -> Iterator[Hit]:
    for copy in _copies(view):
        if copy.peer is False:
            yield Hit(f"cuDeviceCanAccessPeer is 0; staged copy at {copy.gb_s or 0:.0f} GB/s", _where(copy))


@rule(
    "probe.slow-copy",
    Severity.WARN,
    Area.NVLINK,
    "A copy between GPUs is slower than its links promise",
    blocks="the expected speed of every tensor-parallel group over these GPUs",
    remedy="compare with idle GPUs; check links, fabric health and other work on the switch",
    sources=(MEASURED, LINKS_ARE_NO_PROOF),
    kinds=SWITCHED,
)
def slow_copy(view: NodeView) -> Iterator[Hit]:
    for copy in _copies(view):
        raw = expected_gb_s(view, copy)
        if not raw or copy.gb_s is None or copy.peer is False or copy.gb_s >= SLOW * raw:
            continue
        broken = copy.gb_s < BROKEN * raw
        yield Hit(
            f"{copy.gb_s:.0f} GB/s, at least {SLOW * raw:.0f} expected of {raw:.0f} raw",
            _where(copy),
            severity=Severity.FAIL if broken else None,
        )


@rule(
    "probe.multicast-failed",
    Severity.FAIL,
    Area.MULTICAST,
    "Multicast memory cannot be allocated",
    blocks="the specialized decode path (TP8, TP16)",
    remedy="check fabric manager, partition and confidential computing; vLLM would stop here after the load",
    sources=(BUSY_MANAGER, Source("https://github.com/lightseekorg/tokenspeed/pull/1127", "2026-08-18")),
    kinds=SWITCHED,
)
def multicast_failed(view: NodeView) -> Iterator[Hit]:
    answer = view.host.probe.multicast if view.host and view.host.probe else None
    if answer and answer != "ok":
        yield Hit(answer)
