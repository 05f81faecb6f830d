"""Several hosts as one group: one domain, one driver, one NCCL, clocks that agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from k3ctl.checks.finding import Area, Hit, Severity, Source, rule
from k3ctl.checks.view import ClusterView, NodeView, nccl_version
from k3ctl.facts.products import Kind

TWO_DOMAINS = Source("https://github.com/vllm-project/vllm/issues/51986", "2026-08-13")
DRIVER = Source(
    "https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/cmdservice.html",
    "2026-09",
    "!V! version mismatch",
)
NCCL = Source("https://github.com/NVIDIA/nccl/issues/2167", "2026-05-10")
STALE_S = 900


def _skew(cluster: ClusterView, read: Callable[[NodeView], str | None]) -> str:
    """``a: v1; b, c: v2`` when the hosts differ, empty when they agree or do not tell."""
    hosts: dict[str, list[str]] = defaultdict(list)
    for view in cluster.views:
        value = read(view)
        if value:
            hosts[value].append(view.node.hostname)
    if len(hosts) < 2:
        return ""
    return "; ".join(f"{', '.join(names)}: {value}" for value, names in sorted(hosts.items()))


@rule(
    "fabric.clique-mismatch",
    Severity.FAIL,
    Area.NVLINK,
    "The rack GPUs are in different NVLink domains",
    blocks="tensor parallelism over all of them",
    remedy="put the trays into one NVLink partition and reset the GPUs, or keep each group inside one domain",
    sources=(
        TWO_DOMAINS,
        Source("https://docs.nvidia.com/multi-node-nvlink-systems/", "2026-09", "partitions"),
    ),
    cluster=True,
)
def clique_mismatch(cluster: ClusterView) -> Iterator[Hit]:
    rack = [domain for domain in cluster.domains if domain.product.kind is Kind.NVL72]
    if len(rack) > 1:
        parts = [f"{d.name}: {d.size} GPUs on {', '.join(d.hosts)}" for d in rack]
        yield Hit("; ".join(parts))


@rule(
    "driver.mismatch-between-nodes",
    Severity.FAIL,
    Area.MULTI_NODE,
    "The hosts run different drivers",
    blocks="groups over these hosts; on a rack IMEX refuses peers of another version",
    remedy="install the same driver on all hosts of the group",
    sources=(DRIVER,),
    cluster=True,
)
def driver_mismatch(cluster: ClusterView) -> Iterator[Hit]:
    rack = any(view.product.kind is Kind.NVL72 for view in cluster.views)
    if text := _skew(cluster, lambda view: view.node.nvml.driver):
        yield Hit(text, severity=None if rack else Severity.WARN)


@rule(
    "nccl.mismatch-between-nodes",
    Severity.FAIL,
    Area.MULTI_NODE,
    "The hosts would load different NCCL versions",
    blocks="groups over these hosts",
    remedy="use one image, or the same package versions and LD_LIBRARY_PATH, on all hosts",
    sources=(NCCL,),
    cluster=True,
)
def nccl_mismatch(cluster: ClusterView) -> Iterator[Hit]:
    if text := _skew(cluster, nccl_version):
        yield Hit(text)


def _declare_skew(package: str, what: str) -> None:
    @rule(
        f"{package}.mismatch-between-nodes",
        Severity.FAIL,
        Area.ENGINE,
        f"The hosts have different {what} versions",
        blocks="groups over these hosts",
        remedy="install the same packages on all hosts of the group",
        sources=(NCCL,),
        cluster=True,
    )
    def check(cluster: ClusterView) -> Iterator[Hit]:
        text = _skew(cluster, lambda view: view.host.packages.get(package) if view.host else None)
        if text:
            yield Hit(text)


_declare_skew("vllm", "vLLM")
_declare_skew("torch", "torch")


@rule(
    "product.mixed",
    Severity.WARN,
    Area.MULTI_NODE,
    "The hosts are of different products",
    blocks="groups over these hosts",
    remedy="keep a group on one product",
    sources=(TWO_DOMAINS,),
    cluster=True,
)
def mixed(cluster: ClusterView) -> Iterator[Hit]:
    if text := _skew(
        cluster, lambda v: None if v.product.kind in (Kind.UNKNOWN, Kind.NONE) else v.product.id
    ):
        yield Hit(text)


@rule(
    "cluster.imex-not-everywhere",
    Severity.FAIL,
    Area.MULTI_NODE,
    "IMEX is not usable on all trays",
    blocks="groups over these trays",
    remedy="bring up nvidia-imex and its channel on the trays named",
    sources=(DRIVER,),
    cluster=True,
)
def imex_everywhere(cluster: ClusterView) -> Iterator[Hit]:
    from k3ctl.checks.verdict import imex

    trays = [view for view in cluster.views if view.product.kind is Kind.NVL72]
    missing = [view.node.hostname for view in trays if imex(view.node, view.product) == "missing"]
    if len(trays) > 1 and missing:
        yield Hit(f"missing on {', '.join(missing)}")


@rule(
    "cluster.collected-apart",
    Severity.INFO,
    Area.REPORT,
    "The reports were not taken at the same time",
    remedy="collect again, at once: `k3ctl doctor --nodes a,b,c`",
    sources=(DRIVER,),
    cluster=True,
)
def collected_apart(cluster: ClusterView) -> Iterator[Hit]:
    times = [view.host.collected_at for view in cluster.views if view.host and view.host.collected_at]
    if times and max(times) - min(times) > STALE_S:
        yield Hit(f"{(max(times) - min(times)) / 60:.0f} minutes between the first and the last")
