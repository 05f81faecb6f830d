"""Several hosts as one group: one domain, one driver, one NCCL, clocks that agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from k3ctl.checks.domains import Domain
from k3ctl.checks.finding import Area, Hit, Severity, Source, rule
from k3ctl.checks.view import ClusterView, NodeView, nccl_version
from k3ctl.facts.products import Kind
from k3ctl.host import imex_domain

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
    for uuid, cliques in _racks(cluster).items():
        if len(cliques) > 1:
            parts = [f"clique {d.clique_id}: {d.size} GPUs on {', '.join(d.hosts)}" for d in cliques]
            yield Hit(f"cluster {uuid}: {'; '.join(parts)}")


def _racks(cluster: ClusterView) -> dict[str, list[Domain]]:
    """The NVLink domains of rack trays by cluster: only cliques of one cluster can be joined."""
    racks: dict[str, list[Domain]] = defaultdict(list)
    for domain in cluster.domains:
        if domain.product.kind is Kind.NVL72:
            racks[domain.cluster_uuid].append(domain)
    return racks


@rule(
    "fabric.cluster-mismatch",
    Severity.FAIL,
    Area.NVLINK,
    "The trays are in different NVLink clusters",
    blocks="tensor parallelism over all of them",
    remedy="keep each group inside one cluster: these trays hang on different switches, which no partition can join",
    sources=(
        TWO_DOMAINS,
        Source("https://docs.nvidia.com/multi-node-nvlink-systems/", "2026-09", "cluster UUID, then clique"),
    ),
    cluster=True,
)
def cluster_mismatch(cluster: ClusterView) -> Iterator[Hit]:
    racks = _racks(cluster)
    if len(racks) > 1:
        parts = [f"{uuid}: {', '.join(_hosts(found))}" for uuid, found in racks.items()]
        yield Hit("; ".join(parts))


def _hosts(found: Iterable[Domain]) -> list[str]:
    return sorted({host for domain in found for host in domain.hosts})


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
    missing = [v.node.hostname for v in trays if imex(v.node, v.product, v.imex_domain) == "missing"]
    wanted = cluster.requires.nodes if cluster.requires else 0
    if max(len(trays), wanted) > 1 and missing:
        yield Hit(f"IMEX not usable on {', '.join(missing)}")


@rule(
    "imex.several-domains",
    Severity.FAIL,
    Area.MULTI_NODE,
    "Trays of one NVLink domain are in different IMEX domains",
    blocks="groups over trays of different IMEX domains: fabric handles of one cannot be imported in the other",
    remedy="list all trays of the group in one nodes_config.cfg (in Kubernetes: one ComputeDomain), the same on each "
    "of them, and restart nvidia-imex",
    sources=(
        Source("https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/issues/892", "2026-02-25"),
        Source("https://github.com/meta-pytorch/torchcomms/pull/3517", "2026-08-08"),
        Source("https://github.com/pytorch/pytorch/pull/178989", "2026-04-01"),
    ),
    cluster=True,
)
def several_imex_domains(cluster: ClusterView) -> Iterator[Hit]:
    """Every tray's own table may say UP: only the tables side by side tell."""
    for domain in cluster.domains:
        if domain.product.kind is not Kind.NVL72:
            continue
        tables = [(v.node.hostname, v.imex_domain) for v in cluster.views if v.node.hostname in domain.hosts]
        of = imex_domain.membership((tray, table) for tray, table in tables if table)
        if len(set(of.values())) > 1:
            parts = [
                f"{', '.join(tray for tray in of if of[tray] == nodes)} list only {', '.join(sorted(nodes - set(of)))}"
                for nodes in dict.fromkeys(of.values())
            ]
            yield Hit(f"{len(parts)} different IMEX domains: {'; '.join(parts)}")


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
