"""Whether a deployment can be started on given machines, and every reason why not: the one answer of doctor, plan and
serve.

Pure. Doctor's rules judge the hosts and GPUs that the deployment would take, plan's rules the configuration on them.
A reason is a ``Finding``: a failure stands against the start, an unknown says what has to be read before one can tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from k3ctl.checks.domains import Domain, domains
from k3ctl.checks.evaluate import cluster_findings, concerning, node_findings, sort, view_of, views_of
from k3ctl.checks.finding import Area, Finding, Severity
from k3ctl.checks.merge import Gathered
from k3ctl.checks.products import SWITCHED
from k3ctl.checks.view import ClusterView, NodeView
from k3ctl.facts.products import PRODUCTS
from k3ctl.gpus.types import Snapshot
from k3ctl.host.values import unread
from k3ctl.planning import detect
from k3ctl.planning import hardware as hw
from k3ctl.planning.group import START, Group, Need, choose
from k3ctl.planning.hardware import Hardware
from k3ctl.planning.proposal import Proposal
from k3ctl.planning.rules import ALL, PlanFinding, evaluate
from k3ctl.profiles.schema import Requires

JUDGED_BY_GROUP = frozenset(
    {"requires.gpu", "requires.gpus", "requires.nvlink-domain", "requires.driver", "specialized.domain"}
)
"""Plan's rules about described hardware; where machines were read, the choice of the group answers them."""
HOSTS = "requires.hosts"


class Standing(StrEnum):
    """What becomes of a start."""

    RUNS = "runs"
    SHARE = "its share runs"
    """These hosts are fit for their part; the other hosts of the group were not read."""
    UNKNOWN = "may run"
    SHORT = "needs more hosts"
    """Nothing else stands against it."""
    REFUSED = "cannot run"


@dataclass(frozen=True)
class Preflight:
    """The answer. ``deployment`` is on the hardware of the group, where machines were read and there is one."""

    deployment: Proposal
    reasons: tuple[Finding, ...]
    """Failures and unknowns, the worst first."""
    rules: tuple[PlanFinding, ...]
    """All that plan's rules say, costs included."""
    group: Group = field(default_factory=Group)
    notes: tuple[Finding, ...] = ()
    """What else doctor's rules say about the hosts of the group."""

    @property
    def blocking(self) -> tuple[Finding, ...]:
        """Why it must not be started."""
        return tuple(reason for reason in self.reasons if reason.severity is Severity.FAIL)

    @property
    def unknowns(self) -> tuple[Finding, ...]:
        """What was not read and has to be, before anyone can tell."""
        return tuple(reason for reason in self.reasons if reason.severity is Severity.UNKNOWN)

    @property
    def standing(self) -> Standing:
        """The answer in a word."""
        if self.blocking:
            short = all(reason.id == HOSTS for reason in self.blocking)
            return Standing.SHORT if short else Standing.REFUSED
        if not self.unknowns:
            return Standing.RUNS
        return Standing.SHARE if all(reason.id == HOSTS for reason in self.unknowns) else Standing.UNKNOWN

    def json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "standing": self.standing.value,
            "group": self.group.json(),
            "reasons": [reason.to_json() for reason in self.reasons],
        }


def preflight(deployment: Proposal, machines: Gathered | None, *, share: bool = False) -> Preflight:
    """Judge ``deployment`` on ``machines``; without them only its configuration on described hardware.

    ``share``: the machines are some hosts of a larger group, as for ``k3ctl serve`` on one of its nodes.
    """
    if machines is None:
        rules = tuple(evaluate(ALL, deployment))
        return Preflight(deployment, tuple(_blocking(rules)), rules)
    requires = requirements(deployment)
    views = [_as_started(view, deployment) for view in views_of(_in_order(machines.snapshot), machines.hosts)]
    found = concerning(node_findings(views), requires)
    nvlink = domains(Snapshot(nodes=tuple(view.node for view in views)))
    group = choose(Need.of(deployment), views, _faults(found), nvlink, share)
    if not group.members:
        together = cluster_findings(ClusterView(views, nvlink, requires, Need.of(deployment).tp))
        found += [f for f in concerning(together, requires) if f.severity is Severity.FAIL]
        return _without_group(deployment, group, views, found, machines)
    return _with_group(deployment, group, views, found, nvlink, requires, share)


def _in_order(snapshot: Snapshot) -> Snapshot:
    """The GPUs of every host by index, in whatever order they were told."""
    nodes = [
        replace(node, gpus=tuple(sorted(node.gpus, key=lambda gpu: gpu.index))) for node in snapshot.nodes
    ]
    return replace(snapshot, nodes=tuple(nodes))


def requirements(d: Proposal) -> Requires:
    """What the profile requires, with the sizes that ``d`` really has."""
    requires, need = d.config.profile.requires, Need.of(d)
    by_design = d.config.profile.decode.backend == "latency_specialized"
    multicast = d.specialized or (requires.multicast and not by_design)
    size = {"gpus": need.per_node * need.nodes, "nodes": need.nodes}
    return requires.model_copy(update={**size, "multicast": multicast and need.per_node > 0})


def _as_started(view: NodeView, d: Proposal) -> NodeView:
    """The host with the environment that the engine would get there."""
    if not view.node.env and view.node.env != {}:
        return view  # nobody looked: the host's own variables would win over the profile's
    host = view.host
    mine = {name: value for name, value in d.config.env.items() if d.config.insists_on(name)}
    env = {**d.config.env, **view.node.environment, **mine}
    if host:
        host = replace(host, settings=tuple(s for s in host.settings if s.name not in mine))
    return view_of(replace(view.node, env=env), host)


def _faults(found: Iterable[Finding]) -> Mapping[str, list[Finding]]:
    faults: dict[str, list[Finding]] = {}
    for finding in found:
        if finding.severity is Severity.FAIL:
            faults.setdefault(finding.node, []).append(finding)
    return faults


def _without_group(
    d: Proposal, group: Group, views: Sequence[NodeView], found: Sequence[Finding], machines: Gathered
) -> Preflight:
    """No group: what is short, and what the configuration itself has against it."""
    if d.hardware is None or d.hardware.machines is not None:
        nodes = tuple(view.node for view in views)
        d = replace(d, hardware=detect.from_snapshots([Snapshot(nodes=nodes)], "the hosts that were read"))
    wrong_product = any(reason.id == "requires.gpu" and not reason.where for reason in group.short)
    rules = tuple(f for f in evaluate(ALL, d) if f.rule.id not in JUDGED_BY_GROUP | {"allreduce.mnnvl"})
    unread = [] if wrong_product else [f for f in found if f.severity is Severity.UNKNOWN]
    broken = [f for f in machines.findings if f.severity is Severity.FAIL]
    no_driver = (
        [f for f in found if f.area is Area.DRIVER and f.severity is Severity.FAIL] if wrong_product else []
    )
    together = [f for f in found if not f.node and f.severity is Severity.FAIL and not wrong_product]
    reasons = [
        *group.short,
        *together,
        *no_driver,
        *broken,
        *([] if wrong_product else _blocking(rules)),
        *unread,
    ]
    return Preflight(d, _worst_first(reasons), rules, group)


def _with_group(
    d: Proposal,
    group: Group,
    views: Sequence[NodeView],
    found: Sequence[Finding],
    nvlink: Sequence[Domain],
    requires: Requires,
    share: bool,
) -> Preflight:
    members = [_narrow(view, group) for view in views if view.node.hostname in group.members]
    snapshot = Snapshot(nodes=tuple(view.node for view in members))
    cluster = ClusterView(members, _within(nvlink, group), requires, Need.of(d).tp)
    here = sort(concerning([*_unread(members), *cluster_findings(cluster)], requires))
    on_group = replace(d, vllm=_vllm(members, d.vllm))
    if requires.gpus:
        hardware = detect.from_snapshots([snapshot], _source(d))
        known_domains = bool(cluster.domains) and not _fabric_unread(members)
        on_group = replace(on_group, hardware=hardware if known_domains else _assumed(hardware, group))
    by_group = JUDGED_BY_GROUP if requires.gpus else frozenset()
    rules = tuple(f for f in evaluate(ALL, on_group) if f.rule.id not in by_group)
    reasons = [f for f in here if f.severity in (Severity.FAIL, Severity.UNKNOWN)]
    if share and len(members) < requires.nodes:
        reasons.append(_share(len(members), requires.nodes))
    judged = {reason.id for reason in reasons}
    own = _blocking(rules)
    told = [f for f in found if f.node in group.members]
    notes = [f for f in (*told, *here) if f.severity in (Severity.WARN, Severity.INFO)]
    all_reasons = [*reasons, *(reason for reason in own if reason.id not in judged)]
    return Preflight(on_group, _worst_first(all_reasons), rules, group, tuple(sort(notes)))


def _fabric_unread(members: Sequence[NodeView]) -> bool:
    switched = [view for view in members if view.product.kind in SWITCHED]
    return any(unread(gpu.fabric) for view in switched for gpu in view.node.gpus)


def _assumed(hardware: Hardware, group: Group) -> Hardware:
    """The hardware with the NVLink domains that nobody read, as the product usually has them; multicast unknown."""
    sizes = {host: len(gpus) for host, gpus in group.members.items()}
    row = PRODUCTS.get(hardware.product)
    if row and row.domain_gpus > row.gpus_per_host:
        found: tuple[hw.Domain, ...] = (hw.Domain("not read", tuple(sizes), sum(sizes.values())),)
    else:
        found = tuple(hw.Domain(f"{host}: not read", (host,), size) for host, size in sizes.items())
    return replace(hardware, domains=found, gpus=sum(sizes.values()))


def _narrow(view: NodeView, group: Group) -> NodeView:
    """The host with the GPUs of the group; its product stays what the whole host is."""
    return replace(view, node=group.narrow(view.node)) if group.members[view.node.hostname] else view


def _unread(members: Sequence[NodeView]) -> list[Finding]:
    return list(node_findings(members, only=Severity.UNKNOWN))


def _within(nvlink: Sequence[Domain], group: Group) -> list[Domain]:
    """The NVLink domains as far as the group reaches into them."""
    taken = {(host, index) for host, indices in group.members.items() for index in indices}
    parts = [replace(domain, members=tuple(m for m in domain.members if m in taken)) for domain in nvlink]
    return [part for part in parts if part.members]


def _vllm(members: Sequence[NodeView], otherwise: str) -> str:
    """The vLLM that is installed on the hosts, where they tell."""
    versions = [view.host.packages["vllm"] for view in members if view.host and "vllm" in view.host.packages]
    return versions[0].split("+", maxsplit=1)[0] if versions else otherwise


def _source(d: Proposal) -> str:
    return d.hardware.source if d.hardware else "the hosts that were read"


def _share(seen: int, wanted: int) -> Finding:
    return Finding(
        HOSTS,
        Severity.UNKNOWN,
        Area.PROFILE,
        "Only some of the hosts were read",
        f"{seen} of {wanted} hosts; their own share was judged",
        blocks="the verdict on the whole group",
        remedy="read the others too: `k3ctl doctor --nodes a,b,c`, or merge their reports",
    )


def _blocking(rules: Iterable[PlanFinding]) -> list[Finding]:
    """Plan's findings that stand against a start, as reasons."""
    return [
        Finding(
            f.rule.id,
            Severity.FAIL,
            Area.PROFILE,
            f.rule.title,
            f.hit.found,
            blocks=START,
            remedy=f.hit.alternative,
        )
        for f in rules
        if f.rule.effect.blocks
    ]


def _worst_first(reasons: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(dict.fromkeys(reasons), key=lambda reason: -reason.severity))
