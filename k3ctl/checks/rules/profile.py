"""What a serving profile requires of each host of its group; which hosts those are is planning's to choose."""

from __future__ import annotations

from collections.abc import Iterator

from k3ctl.checks import multicast
from k3ctl.checks.finding import Area, Hit, Severity, Source, rule
from k3ctl.checks.view import ClusterView

SCHEMA = Source("https://github.com/vllm-project/recipes/blob/main/models/moonshotai/Kimi-K3.yaml", "2026-08")
MULTICAST = Source("https://github.com/vllm-project/vllm/issues/50179", "2026-07-28")
START = "this profile"


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
    for view in cluster.views:
        verdict = view.multicast.verdict
        if verdict == multicast.YES:
            continue
        reason = f" by {', '.join(view.multicast.forbidden_by)}" if view.multicast.forbidden_by else ""
        weak = verdict == multicast.UNKNOWN
        yield Hit(
            f"multicast: {verdict}{reason}", view.node.hostname, severity=Severity.UNKNOWN if weak else None
        )


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
        elif not inside(version, spec):
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


def inside(version: str, spec: str) -> bool:
    """Whether ``version`` meets ``spec``; what does not parse is not held against it."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(spec).contains(Version(version.split("+", maxsplit=1)[0]), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True
