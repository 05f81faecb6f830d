"""Run the rules over what was read: pure, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from k3ctl.checks import multicast, rules
from k3ctl.checks.domains import domains
from k3ctl.checks.finding import RULES, Area, Finding, Rule, Severity
from k3ctl.checks.products import classify
from k3ctl.checks.view import ClusterView, NodeView, nccl_version
from k3ctl.facts.products import Kind
from k3ctl.gpus.types import Node, Snapshot
from k3ctl.host.types import Host

if TYPE_CHECKING:
    from k3ctl.profiles.schema import Requires

assert rules  # importing the package declares the rules

Hosts = Host | Mapping[str, Host] | None
"""Facts beside the GPUs: one host for a one-node snapshot, or a mapping by host name."""


def evaluate(
    snapshot: Snapshot, host: Hosts = None, requires: Requires | None = None, tensor_parallel: int = 0
) -> list[Finding]:
    """Every finding about ``snapshot``, worst first.

    Without ``host`` only the rules about GPUs, services and environment can speak. With ``requires`` (a profile's
    section) its demands are judged too, and findings about what the profile does not need are left out;
    ``tensor_parallel`` is the group that has to be in one NVLink domain (0: all of the profile's GPUs).
    """
    views = views_of(snapshot, host)
    cluster = ClusterView(views, domains(snapshot), requires, tensor_parallel)
    return sort(concerning([*node_findings(views), *cluster_findings(cluster)], requires))


def views_of(snapshot: Snapshot, host: Hosts = None) -> list[NodeView]:
    """The hosts of ``snapshot`` with their facts and what follows from them."""
    return [view_of(node, _host_of(node, host, len(snapshot.nodes))) for node in snapshot.nodes]


def concerning(findings: Iterable[Finding], requires: Requires | None) -> list[Finding]:
    """The findings that a profile with these requirements cares about; all of them without any."""
    return [finding for finding in findings if requires is None or concerns(finding, requires)]


def concerns(finding: Finding, requires: Requires) -> bool:
    """Whether a profile with these requirements cares about ``finding``."""
    rule = RULES[finding.id]
    if requires.gpus == 0 and Kind.NONE not in rule.kinds:
        return False
    return finding.area in _areas(requires)


def _areas(requires: Requires) -> set[Area]:
    areas = {Area.HOST, Area.REPORT, Area.PROFILE}
    if requires.gpus:
        areas |= {Area.DRIVER, Area.GPU, Area.STORAGE, Area.ENGINE}
    if requires.gpus > 1:
        areas.add(Area.NVLINK)
    if requires.multicast:
        areas.add(Area.MULTICAST)
    if requires.nodes > 1:
        areas.add(Area.MULTI_NODE)
    return areas


def view_of(node: Node, host: Host | None) -> NodeView:
    """``node`` with its product class and multicast verdict."""
    product = classify(node)
    env = dict(node.environment)
    if host:
        env |= {setting.name: setting.value for setting in host.settings}
    probed = (host.probe.multicast if host and host.probe else None) or ""
    return NodeView(node, product, multicast.judge(node, product, env, probed), host)


def sort(findings: Iterable[Finding]) -> list[Finding]:
    """Worst first, then in the order of the rules, then by place."""
    order = {id_: position for position, id_ in enumerate(RULES)}
    return sorted(findings, key=lambda f: (-f.severity, order.get(f.id, len(order)), f.node, f.where))


def _host_of(node: Node, host: Hosts, count: int) -> Host | None:
    if host is None or isinstance(host, Host):
        return host if count == 1 else None
    return host.get(node.hostname)


def node_findings(views: Sequence[NodeView], only: Severity | None = None) -> Iterator[Finding]:
    """Every finding about single hosts; ``only`` those of the rules of one severity."""
    for rule in RULES.values():
        if rule.cluster or only not in (None, rule.severity):
            continue
        for view in views:
            if view.product.kind in rule.kinds and rule.applies.holds(_version(rule, view)):
                for hit in rule.check(view):
                    yield rule.finding(hit, view.node.hostname)


def cluster_findings(cluster: ClusterView) -> Iterator[Finding]:
    """Every finding about the hosts together."""
    for rule in RULES.values():
        if rule.cluster:
            for hit in rule.check(cluster):
                yield rule.finding(hit)


def _version(rule: Rule, view: NodeView) -> str | None:
    """The version that the rule's range is about, where it is known."""
    if rule.applies.subject == "vLLM":
        return view.host.packages.get("vllm") if view.host else None
    if rule.applies.subject == "NCCL":
        return nccl_version(view)
    return view.node.nvml.driver
