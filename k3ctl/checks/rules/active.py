"""What ``doctor --active`` measured: how fast a GPU's memory is, and what an all-reduce over NCCL gives."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from k3ctl.checks.finding import Area, Hit, Severity, Source, rule
from k3ctl.checks.products import GPU_KINDS, SWITCHED
from k3ctl.checks.view import NodeView
from k3ctl.facts import products
from k3ctl.facts.products import Kind
from k3ctl.host.types import Active, Triad
from k3ctl.host.values import known

PREFLIGHT = Source(
    "https://github.com/NVIDIA/NVSentinel/blob/main/docs/configuration/preflight.md",
    "2026-09",
    "NCCL loopback at 256 MB: at least 150 GB/s bus bandwidth over NVLink, 15 over PCIe",
)
TRIAD = Source(
    "https://docs.nvidia.com/datacenter/dcgm/latest/reference/diagnostics/plugins/",
    "2026-09",
    "memory_bandwidth: STREAM triad against a minimum",
)
SLOW_OF_PRODUCT, SLOW_OF_PEERS = 0.75, 0.93
"""Share of the product's bandwidth, and of the other GPUs' median, below which a GPU's memory is slow. Ours."""
NVLINK_BUS_GB_S, PCIE_BUS_GB_S = 150.0, 15.0


def _active(view: NodeView) -> Active | None:
    return view.host.active if view.host else None


def _where(triad: Triad) -> str:
    return f"GPU {triad.gpu}" if triad.gpu >= 0 else triad.uuid or "a GPU that NVML does not list"


@rule(
    "active.failed",
    Severity.FAIL,
    Area.GPU,
    "A measurement on the GPUs did not finish",
    blocks="every profile that needs these GPUs",
    remedy="read the error; run it again on idle GPUs, and `k3ctl doctor --probe` for copies between them",
    sources=(TRIAD, PREFLIGHT),
    kinds=GPU_KINDS,
)
def failed(view: NodeView) -> Iterator[Hit]:
    found = _active(view)
    if found is None:
        return
    if found.error:
        yield Hit(found.error)
    for triad in found.triads:
        if triad.error:
            yield Hit(triad.error, _where(triad))
    if found.collective and found.collective.error and found.collective.ranks > 1:
        yield Hit(found.collective.error, "all-reduce")


@rule(
    "active.wrong-data",
    Severity.FAIL,
    Area.GPU,
    "A GPU computed something else",
    blocks="every profile that needs this GPU",
    remedy="take it out of service; read the kernel log for Xids and the counters of memory errors",
    sources=(TRIAD,),
    kinds=GPU_KINDS,
)
def wrong_data(view: NodeView) -> Iterator[Hit]:
    found = _active(view)
    if found is None:
        return
    for triad in found.triads:
        if triad.correct is False:
            yield Hit("a + s·b differs from what it must be", _where(triad))
    if found.collective and found.collective.correct is False:
        yield Hit("the sum over the ranks is wrong", "all-reduce")


@rule(
    "active.slow-memory",
    Severity.WARN,
    Area.GPU,
    "A GPU's memory is slower than its product's, or than its neighbours'",
    blocks="the expected speed: decode is as fast as the slowest GPU's memory",
    remedy="look at clocks, power cap, temperature and remapped rows of this GPU; measure it alone",
    sources=(TRIAD,),
    kinds=GPU_KINDS,
)
def slow_memory(view: NodeView) -> Iterator[Hit]:
    found = _active(view)
    triads = [t for t in found.triads if t.gb_s] if found else []
    names = {gpu.index: known(gpu.name, "") for gpu in view.node.present}
    for triad in triads:
        rate = triad.gb_s or 0.0
        product = products.named(names.get(triad.gpu, ""))
        peers = [t.gb_s or 0.0 for t in triads if t is not triad and names.get(t.gpu) == names.get(triad.gpu)]
        limits = []
        if product and product.rates:
            limits.append((SLOW_OF_PRODUCT * product.rates.bytes_per_s / 1e9, f"of {product.token}"))
        if len(peers) > 1:
            limits.append((SLOW_OF_PEERS * statistics.median(peers), "beside its neighbours"))
        for least, why in limits:
            if rate < least:
                yield Hit(f"{rate:.0f} GB/s, at least {least:.0f} expected {why}", _where(triad))
                break


@rule(
    "active.slow-collective",
    Severity.WARN,
    Area.NVLINK,
    "An all-reduce over NCCL is slower than its links should give",
    blocks="the expected speed of every tensor-parallel group over these GPUs",
    remedy="NCCL_DEBUG=INFO shows which transport it took; compare with `k3ctl doctor --probe`",
    sources=(PREFLIGHT,),
    kinds=SWITCHED | {Kind.PCIE},
)
def slow_collective(view: NodeView) -> Iterator[Hit]:
    found = _active(view)
    rate = found.collective.bus_gb_s if found and found.collective else None
    least = NVLINK_BUS_GB_S if view.product.kind in SWITCHED else PCIE_BUS_GB_S
    if rate is not None and rate < least:
        yield Hit(f"{rate:.0f} GB/s bus bandwidth, at least {least:.0f} expected")
