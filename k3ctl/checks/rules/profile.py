"""What a serving profile requires of the machines that shall run it."""

from __future__ import annotations

from collections.abc import Iterator

from k3ctl.checks import multicast
from k3ctl.checks.domains import usable
from k3ctl.checks.finding import Area, Hit, Severity, Source, rule
from k3ctl.checks.products import SWITCHED, Product
from k3ctl.checks.view import ClusterView, NodeView

SCHEMA = Source("https://github.com/vllm-project/recipes/blob/main/models/moonshotai/Kimi-K3.yaml", "2026-08")
DOMAIN = Source(
    "https://github.com/vllm-project/vllm/issues/51986", "2026-08-13", "TP over two NVLink domains"
)
MULTICAST = Source("https://github.com/vllm-project/vllm/issues/50179", "2026-07-28")
START = "this profile"


def _accepted(cluster: ClusterView) -> list[NodeView]:
    """The hosts whose chip the profile names; all of them when it names none."""
    chips = cluster.requires.gpu if cluster.requires else ()
    return [view for view in cluster.views if _fits(view.product, chips)]


def _fits(product: Product, chips: tuple[str, ...]) -> bool:
    """Whether a product is one of ``chips``; a capture without product names is not held against it."""
    return not chips or product.chip in chips or (not product.chip and product.kind in SWITCHED)


def _share(cluster: ClusterView) -> int:
    """GPUs that the hosts in this report have to bring: fewer hosts than wanted judge their share."""
    requires = cluster.requires
    assert requires is not None
    if len(cluster.views) >= requires.nodes:
        return requires.gpus
    return requires.gpus_per_node * len(cluster.views)


@rule(
    "profile.nodes",
    Severity.WARN,
    Area.PROFILE,
    "This report covers fewer hosts than the profile needs",
    blocks="the verdict on the whole group",
    remedy="run `k3ctl doctor --nodes a,b,c` or merge the reports of all hosts",
    sources=(SCHEMA,),
    cluster=True,
)
def nodes(cluster: ClusterView) -> Iterator[Hit]:
    requires = cluster.requires
    if requires and len(cluster.views) < requires.nodes:
        yield Hit(f"{len(cluster.views)} of {requires.nodes} hosts; their own share was judged")


@rule(
    "profile.gpus",
    Severity.FAIL,
    Area.PROFILE,
    "Not enough GPUs of the kind that the profile needs",
    blocks=START,
    remedy="choose a profile for this hardware: `k3ctl profiles list`",
    sources=(SCHEMA,),
    cluster=True,
)
def gpus(cluster: ClusterView) -> Iterator[Hit]:
    requires = cluster.requires
    if not requires or not requires.gpus:
        return
    have = sum(len([g for g in view.node.present if not g.in_mig_mode]) for view in _accepted(cluster))
    if have < _share(cluster):
        wanted = " or ".join(requires.gpu) or "any"
        seen = ", ".join(dict.fromkeys(view.product.id for view in cluster.views))
        yield Hit(f"{_share(cluster)} GPUs wanted ({wanted}), {have} here (product {seen})")


@rule(
    "profile.nvlink-domain",
    Severity.FAIL,
    Area.PROFILE,
    "A tensor-parallel group does not fit into one NVLink domain",
    blocks=START,
    remedy="read the fabric findings above; keep the group inside one domain",
    sources=(DOMAIN,),
    cluster=True,
)
def nvlink_domain(cluster: ClusterView) -> Iterator[Hit]:
    requires = cluster.requires
    if not requires or not requires.nvlink_domain or requires.gpus < 2:
        return
    best = max((d.largest_tp for d in cluster.domains if _fits(d.product, requires.gpu)), default=0)
    wanted = min(cluster.tensor_parallel or requires.gpus, _share(cluster))
    if best < wanted and _accepted(cluster):
        yield Hit(f"{wanted} GPUs wanted in one domain, the largest group here has {best}")


@rule(
    "profile.multicast",
    Severity.FAIL,
    Area.PROFILE,
    "The profile needs NVLink multicast",
    blocks=START,
    remedy="read the multicast findings; `k3ctl doctor --explain multicast.env-disabled` explains the layers",
    sources=(MULTICAST,),
    cluster=True,
)
def needs_multicast(cluster: ClusterView) -> Iterator[Hit]:
    requires = cluster.requires
    if not requires or not requires.multicast:
        return
    for view in _accepted(cluster):
        verdict = view.multicast.verdict
        if verdict == multicast.YES:
            continue
        reason = f" by {', '.join(view.multicast.forbidden_by)}" if view.multicast.forbidden_by else ""
        weak = verdict == multicast.UNKNOWN and bool(usable(view.node, view.product))
        yield Hit(
            f"multicast: {verdict}{reason}", view.node.hostname, severity=Severity.WARN if weak else None
        )


@rule(
    "profile.driver",
    Severity.FAIL,
    Area.PROFILE,
    "The driver is not one that the profile accepts",
    blocks=START,
    remedy="install a driver in the profile's range",
    sources=(SCHEMA,),
    cluster=True,
)
def driver(cluster: ClusterView) -> Iterator[Hit]:
    spec = cluster.requires.driver if cluster.requires else ""
    for view in _accepted(cluster):
        version = view.node.nvml.driver
        if spec and version and not _inside(version, spec):
            yield Hit(f"driver {version}, wanted {spec}", view.node.hostname)


@rule(
    "profile.vllm",
    Severity.FAIL,
    Area.PROFILE,
    "The installed vLLM is not one that the profile accepts",
    blocks=START,
    remedy="`make setup-gpu` on a GPU host, `make demo` on any other, installs the engine",
    sources=(SCHEMA,),
    cluster=True,
)
def vllm(cluster: ClusterView) -> Iterator[Hit]:
    spec = cluster.requires.vllm if cluster.requires else ""
    for view in cluster.views:
        if not spec or view.host is None or not view.host.k3ctl:
            continue  # a text capture does not tell which packages there are
        version = view.host.packages.get("vllm")
        if version is None:
            yield Hit(f"vLLM is not installed, wanted {spec}", view.node.hostname)
        elif not _inside(version, spec):
            yield Hit(f"vLLM {version}, wanted {spec}", view.node.hostname)


@rule(
    "profile.memory",
    Severity.FAIL,
    Area.PROFILE,
    "The host has less memory than the profile needs",
    blocks=START,
    remedy="end other work on this host, or raise the container's limit",
    sources=(SCHEMA,),
    cluster=True,
)
def memory(cluster: ClusterView) -> Iterator[Hit]:
    wanted = cluster.requires.memory_gib if cluster.requires else 0.0
    for view in cluster.views:
        bounds = [view.host.memory_available_bytes, view.host.cgroup_memory_bytes] if view.host else []
        known = [bound for bound in bounds if bound]
        if wanted and known and min(known) < wanted * 2**30:
            yield Hit(f"{min(known) / 2**30:.1f} GiB available, {wanted:g} GiB wanted", view.node.hostname)


def _inside(version: str, spec: str) -> bool:
    """Whether ``version`` meets ``spec``; what does not parse is not held against it."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(spec).contains(Version(version.split("+", maxsplit=1)[0]), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True
