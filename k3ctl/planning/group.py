"""Which hosts and GPUs a deployment would take of those that were read, and what it has to leave out.

A host takes part with as many GPUs as every host of the deployment brings: of the right product, without a fault, with
enough free memory, in one NVLink domain. Hosts of one group agree in what has to be equal (domain, driver, packages).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from k3ctl.checks.domains import Domain, islands, known_domain, registered, usable
from k3ctl.checks.finding import RULES, Area, Finding, Severity
from k3ctl.checks.products import SWITCHED
from k3ctl.checks.rules.network import FIRST_NCCL, old_nccl
from k3ctl.checks.rules.profile import inside
from k3ctl.checks.view import NodeView, nccl_version, size_text
from k3ctl.facts import products
from k3ctl.facts.products import Kind
from k3ctl.gpus.types import Fabric, Gpu, Memory, Node, Snapshot
from k3ctl.host import imex_domain
from k3ctl.host.values import known
from k3ctl.planning.proposal import DEFAULT_UTILIZATION, Proposal

COUNTS = frozenset({"gpu.missing", "gpu.lost", "product.odd-gpu", "nvlink.odd-gpu", "nvlink.islands"})
"""Rules about how many GPUs a host has left: the group only needs enough of them, which is counted."""
MATRIX = frozenset({"nvlink.no-peer-access"})
"""Rules about pairs, which the islands of a board already keep apart."""
START = "starting this profile"


@dataclass(frozen=True)
class Need:
    """What a deployment wants: ``nodes`` hosts with ``per_node`` GPUs each, ``tp`` of them in one NVLink domain."""

    tokens: tuple[str, ...]
    nodes: int
    per_node: int
    tp: int
    one_domain: bool
    driver: str
    utilization: float
    unfixed_pipeline: bool = False
    """Pipeline stages without the plugin that orders their streams where pynccl is off."""

    @classmethod
    def of(cls, d: Proposal) -> Need:
        """The needs of ``d``: its arguments, else what its profile requires."""
        requires = d.config.profile.requires
        nodes = int(d.arg("nnodes") or requires.nodes)
        gpus = 0 if d.on_cpu else d.parallel.gpus
        return cls(
            tokens=requires.gpu,
            nodes=nodes,
            per_node=-(-gpus // nodes),
            tp=d.parallel.tp,
            one_domain=requires.nvlink_domain or d.specialized,
            driver=requires.driver,
            utilization=float(d.arg("gpu_memory_utilization", DEFAULT_UTILIZATION)),
            unfixed_pipeline=d.parallel.pp > 1 and not d.has_runtime,
        )

    @property
    def across(self) -> bool:
        """A tensor-parallel group spans hosts, which only a rack's NVLink domain can carry."""
        return self.one_domain and self.tp > self.per_node > 0


@dataclass(frozen=True)
class Offer:
    """What one host brings: the GPUs that may take part, and the faults for which others, or all, may not."""

    view: NodeView
    gpus: tuple[int, ...]
    faults: tuple[Finding, ...]
    assumed: bool = False
    """Nobody read the GPUs of this host."""

    @property
    def name(self) -> str:
        """The host's name."""
        return self.view.node.hostname

    @property
    def sound(self) -> bool:
        """No fault of the host itself, as against one of its GPUs."""
        gpus = {gpu.label for gpu in self.view.node.gpus}
        return not any(fault.where not in gpus and fault.id not in COUNTS for fault in self.faults)

    def serves(self, need: Need) -> bool:
        """The host may take part."""
        return self.sound and (self.assumed or len(self.gpus) >= need.per_node)


@dataclass(frozen=True)
class LeftOut:
    """A host, or some of its GPUs, that the group does not take because of a fault."""

    node: str
    why: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.node} ({'; '.join(self.why)})"


@dataclass(frozen=True)
class Group:
    """The hosts that would serve, each with its GPUs; ``short`` says why there is no such group, if there is none."""

    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()
    short: tuple[Finding, ...] = ()

    def narrow(self, node: Node) -> Node:
        """``node`` with only the GPUs of the group."""
        mine = self.members.get(node.hostname, ())
        pairs = node.pairs and tuple(pair for pair in node.pairs if {pair.a, pair.b} <= set(mine))
        return replace(node, gpus=tuple(gpu for gpu in node.gpus if gpu.index in mine), pairs=pairs)

    def snapshot(self, nodes: Iterable[Node]) -> Snapshot:
        """The hosts of the group, narrowed to its GPUs, in the order of ``nodes``."""
        return Snapshot(nodes=tuple(self.narrow(node) for node in nodes if node.hostname in self.members))

    def json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "hosts": {name: list(gpus) for name, gpus in self.members.items()},
            "left_out": [{"host": entry.node, "why": list(entry.why)} for entry in self.left_out],
        }


def choose(
    need: Need,
    views: Sequence[NodeView],
    faults: Mapping[str, Sequence[Finding]],
    domains: Sequence[Domain],
    share: bool,
) -> Group:
    """The group for ``need``; with ``share`` these are some hosts of a larger group, and only they are judged.

    ``faults`` are the findings per host for which it, or one of its GPUs, must not serve this deployment.
    """
    offers = [offer(view, need, faults.get(view.node.hostname, ())) for view in views]
    wanted = min(need.nodes, len(offers)) if share else need.nodes
    ready = sorted((o for o in offers if o.serves(need)), key=lambda o: (o.assumed, _natural(o.name)))
    best = max(
        _teams(ready, need, domains), key=lambda team: (min(len(team), wanted), _known(team)), default=[]
    )
    chosen = best[:wanted] if len(best) >= wanted else []
    taken = {o.name: o.gpus[: need.per_node] for o in chosen}
    left_out = tuple(_left_out(offers))
    if len(chosen) == wanted and wanted:
        return Group(taken, left_out)
    return Group({}, left_out, tuple(_shortage(need, offers, ready, best, domains)))


def offer(view: NodeView, need: Need, faults: Sequence[Finding]) -> Offer:
    """What one host brings to ``need``."""
    found = list(faults)
    if need.per_node == 0:
        return Offer(view, (), tuple(found))
    node = view.node
    if view.product.kind is Kind.UNKNOWN and not node.gpus:
        return Offer(view, tuple(range(need.per_node)), tuple(found), assumed=True)
    wrong, held = list(_wrong_products(view, need)), list(_held(view, need))
    old = [*_old_driver(view, need), *_old_nccl(view, need)]
    faulty = {fault.where for fault in [*found, *wrong, *held]}
    fit = [gpu for gpu in node.present if gpu.label not in faulty and not gpu.in_mig_mode]
    # a GPU that works for itself needs no link: one GPU of a virtual machine has peers nowhere
    island = _largest_island(view, fit) if need.tp > 1 else [gpu.index for gpu in fit]
    dead = any(known(p.p2p.nvlink, 0) > 0 and {p.a, p.b} <= set(island) for p in node.pairs)
    # pairs that the choice of an island keeps apart are no fault of the host
    found = [fault for fault in found if fault.id not in MATRIX or dead or view.product.kind is Kind.NVL72]
    return Offer(view, tuple(island), (*found, *wrong, *held, *old))


def _largest_island(view: NodeView, fit: Sequence[Gpu]) -> list[int]:
    """The GPUs of ``fit`` that reach each other over NVLink, as far as the readings tell."""
    indices = [gpu.index for gpu in fit]
    if view.product.kind is Kind.NVL72:
        inside_fabric = {gpu.index for gpu in usable(view.node, view.product)}
        return [gpu.index for gpu in fit if gpu.index in inside_fabric or not isinstance(gpu.fabric, Fabric)]
    if not known_domain(view.node, view.product) or view.product.kind not in SWITCHED | {
        Kind.BRIDGE,
        Kind.UNKNOWN,
    }:
        return indices
    groups = [[i for _, i in island if i in indices] for island in islands(view.node, view.product)]
    best = max(groups, key=len, default=[])
    unread = [
        gpu.index for gpu in fit if view.product.kind in SWITCHED and not isinstance(gpu.fabric, Fabric)
    ]
    return sorted({*best, *unread}) if any(registered(gpu) for gpu in fit) else sorted(best)


def _finding(id_: str, title: str, evidence: str, remedy: str, node: str = "", where: str = "") -> Finding:
    return Finding(id_, Severity.FAIL, Area.PROFILE, title, evidence, where, node, START, remedy)


def _wrong_products(view: NodeView, need: Need) -> Iterator[Finding]:
    """GPUs of another product than the profile's; one without a name is not held against it."""
    title = "A GPU is not of the product that the profile is for"
    remedy = "choose a profile for this hardware: `k3ctl plan`"
    for gpu in view.node.present:
        name = known(gpu.name, "")
        if need.tokens and name and not _accepted(view, name, need.tokens):
            evidence = f"GPU {gpu.index} is {name}, {' or '.join(need.tokens)} wanted"
            yield _finding("requires.gpu", title, evidence, remedy, view.node.hostname, gpu.label)


def _accepted(view: NodeView, name: str, tokens: tuple[str, ...]) -> bool:
    """A profile's ``H200`` is the GPU of a board: a card of that chip has a word of its own."""
    row = products.named(name)
    if row is None:
        return False
    if view.product.kind in SWITCHED:
        return row.token in tokens or (row.kind in SWITCHED and row.chip in tokens)
    return row.chip == view.product.chip and view.product.accepted(tokens)


def _held(view: NodeView, need: Need) -> Iterator[Finding]:
    """GPUs whose free memory is less than what vLLM asks for when it starts."""
    for gpu in view.node.present:
        if not isinstance(gpu.memory, Memory):
            continue
        wanted = int(need.utilization * gpu.memory.total)
        free = min(gpu.memory.free, gpu.memory.total - _taken(gpu))
        if free < wanted:
            yield _finding(
                "memory.free",
                "GPU memory is held: it cannot start now",
                f"{size_text(free)} free of {size_text(gpu.memory.total)}, {size_text(wanted)} wanted "
                f"(gpu_memory_utilization {need.utilization:g}); {_holders(view, gpu)}",
                "end what holds it, if it is left over, or take other GPUs",
                view.node.hostname,
                gpu.label,
            )


def _taken(gpu: Gpu) -> int:
    """Bytes that the processes on a GPU hold, as far as NVML may say."""
    return sum(process.bytes or 0 for process in known(gpu.processes, ()))


def _holders(view: NodeView, gpu: Gpu) -> str:
    named = {(p.gpu, p.pid): p for p in (view.host.processes if view.host else ())}
    texts = []
    for process in known(gpu.processes, ()):
        found = named.get((gpu.index, process.pid))
        size = f" holds {size_text(process.bytes)}" if process.bytes else ""
        if found and found.run:
            texts.append(f"run `{found.run}` (pid {process.pid}){size}: `k3ctl stop {found.run}` ends it")
        else:
            name = f" ({found.name})" if found and found.name else ""
            texts.append(f"pid {process.pid}{name}{size}: `kill {process.pid}` ends it")
    return "; ".join(texts) or "no process visible from here holds it"


def _old_driver(view: NodeView, need: Need) -> Iterator[Finding]:
    version = view.node.nvml.driver
    if need.driver and version and not inside(version, need.driver):
        title = "The driver is not one that the profile accepts"
        text = f"driver {version}, needs {need.driver}"
        yield _finding("requires.driver", title, text, "install a driver in that range", view.node.hostname)


def _old_nccl(view: NodeView, need: Need) -> Iterator[Finding]:
    found = old_nccl(view)
    if found and need.unfixed_pipeline:
        yield _finding(
            "pipeline.pynccl",
            "Pipeline stages give wrong tokens where pynccl is off",
            f"{found}: vLLM 0.33 turns pynccl off without a word",
            f"load NCCL {FIRST_NCCL} or newer, or name k3_runtime in VLLM_PLUGINS",
            view.node.hostname,
        )


def _teams(ready: Sequence[Offer], need: Need, domains: Sequence[Domain]) -> Iterator[list[Offer]]:
    """Every set of hosts that may serve together: alike in all that is known of them."""
    traits = {o.name: _traits(o, need, domains) for o in ready}
    tables = [(o.name, o.view.imex_domain) for o in ready]
    imex = imex_domain.membership((name, table) for name, table in tables if table) if need.across else {}
    for name, table in imex.items():
        traits[name] |= {"imex": table}
    for leader in ready:
        mine = traits[leader.name]
        team = [o for o in ready if all(mine.get(k, v) == v for k, v in traits[o.name].items())]
        # a host that does not tell comes after those that do
        yield sorted(team, key=lambda o: (-len(traits[o.name]), o.assumed, _natural(o.name)))


def _traits(o: Offer, need: Need, domains: Sequence[Domain]) -> dict[str, object]:
    """What has to be equal over the hosts of a group, as far as it is known."""
    view = o.view
    packages = view.host.packages if view.host else {}
    said: dict[str, object | None] = {"driver": view.node.nvml.driver} if need.per_node else {}
    if need.nodes > 1:
        said |= {name: packages.get(name) for name in ("vllm", "torch")} | {"nccl": nccl_version(view)}
    if need.across:
        mine = [d for d in domains if o.name in d.hosts]
        said["domain"] = mine[0].name if len(mine) == 1 else None
        if len(mine) > 1:  # GPUs of one host in two domains: it can be in no group that spans hosts
            said["domain"] = f"{o.name}: {len(mine)} domains"
    return {key: value for key, value in said.items() if value is not None}


def _known(team: Sequence[Offer]) -> int:
    return -sum(o.assumed for o in team)


def _left_out(offers: Sequence[Offer]) -> Iterator[LeftOut]:
    """Hosts and GPUs that have a fault; a host that is merely not needed is none of them."""
    for o in offers:
        faults = [
            fault for fault in o.faults if fault.severity is Severity.FAIL and fault.id != "requires.gpu"
        ]
        odd = [fault for fault in o.faults if fault.id == "requires.gpu"]
        mixed = odd if 0 < len(odd) < len(o.view.node.present) else []
        if faults or mixed:
            held = [fault.where.split()[1] for fault in faults if fault.id == "memory.free"]
            others = [_why(fault) for fault in (*faults, *mixed) if fault.id != "memory.free"]
            memory = [f"GPU {', '.join(held)}: memory is held"] if held else []
            yield LeftOut(o.name, tuple(dict.fromkeys([*others, *memory])))


def _why(fault: Finding) -> str:
    place = fault.where.partition(" (")[0] if fault.where else ""
    said = fault.evidence if fault.evidence.startswith(place) else f"{place}: {fault.evidence}"
    return f"{fault.title}: {said}" if fault.id in RULES else said


def _shortage(
    need: Need,
    offers: Sequence[Offer],
    ready: Sequence[Offer],
    best: Sequence[Offer],
    domains: Sequence[Domain],
) -> Iterator[Finding]:
    """Why there is no group: the wrong product alone, else the faults, then what is short."""
    fitting = [o for o in offers if not _all_wrong(o)]
    if not fitting:
        yield _no_product(need, offers)
        return
    held = [fault for o in fitting for fault in o.faults if fault.id == "memory.free"]
    if held and _only_held(need, offers):
        yield _finding(held[0].id, held[0].title, _now(need, held), held[0].remedy)
    elif len(offers) < need.nodes and len(ready) == len(offers):
        yield _finding(
            "requires.hosts",
            "Fewer hosts than the deployment spans",
            f"needs {need.nodes} hosts with {need.per_node} GPUs each, {len(offers)} here",
            "read the others too: `k3ctl doctor --nodes a,b,c`, or merge their reports",
        )
    elif len(ready) < need.nodes:
        yield _too_few(need, offers, ready)
    if need.across and len(best) < min(len(ready), need.nodes):
        yield _finding(
            "requires.nvlink-domain",
            "A tensor-parallel group does not fit into one NVLink domain",
            f"needs {need.tp} GPUs in one NVLink domain; the largest that can serve offers "
            f"{len(best) * need.per_node} ({_domain_list(domains)}){_leaving(offers)}",
            "keep the group inside one domain, or put trays of one cluster into one partition",
        )
    elif len(best) < min(len(ready), need.nodes):
        yield _finding(
            "requires.alike",
            "The hosts differ in what has to be equal",
            f"needs {need.nodes} hosts alike in driver, vLLM, torch and NCCL; {len(best)} are{_leaving(offers)}",
            "install the same versions on all hosts of the group",
        )
    yield from dict.fromkeys(fault for o in fitting for fault in o.faults if fault.severity is Severity.FAIL)


def _only_held(need: Need, offers: Sequence[Offer]) -> bool:
    """There would be hosts enough, were it not for what holds memory on their GPUs."""
    free = [replace(o, faults=tuple(f for f in o.faults if f.id != "memory.free")) for o in offers]
    gpus = [len({g.label for g in o.view.node.present} - {f.where for f in o.faults}) for o in free]
    return sum(o.assumed or count >= need.per_node for o, count in zip(free, gpus, strict=True)) >= need.nodes


def _now(need: Need, held: Sequence[Finding]) -> str:
    """What stands against a start at this moment, in one sentence; the faults of the GPUs say it one by one."""
    places = {
        node: [f.where.split()[1] for f in held if f.node == node]
        for node in dict.fromkeys(f.node for f in held)
    }
    where = "; ".join(f"{node} GPU {', '.join(gpus)}" for node, gpus in places.items())
    return f"needs {need.nodes * need.per_node} GPUs, cannot start now: on {where}, for example {held[0].evidence}"


def _too_few(need: Need, offers: Sequence[Offer], ready: Sequence[Offer]) -> Finding:
    counted = [o for o in offers if o.sound and not o.assumed] if need.nodes == 1 else ready
    have = max((len(o.gpus) for o in counted), default=0) if need.nodes == 1 else len(ready) * need.per_node
    whole = f"{need.nodes * need.per_node} GPUs"
    per_host = f" ({need.nodes} hosts with {need.per_node} each)" if need.nodes > 1 else ""
    names = ", ".join(o.name for o in (offers if need.nodes == 1 else ready))
    text = f"needs {whole}{per_host}, found {have} that can take part{' on ' + names if names else ''}"
    return _finding(
        "requires.gpus",
        "Not enough GPUs that can take part",
        text + _leaving(offers),
        "repair what is left out, add hosts, or choose a smaller profile",
    )


def _leaving(offers: Sequence[Offer]) -> str:
    """What is left out because of a fault, as the end of a sentence."""
    out = [str(entry) for entry in _left_out(offers)]
    return f"; left out: {'; '.join(out)}" if out else ""


def _all_wrong(o: Offer) -> bool:
    wrong = sum(fault.id == "requires.gpu" for fault in o.faults)
    return (
        not o.assumed
        and wrong == len(o.view.node.present)
        and (wrong > 0 or o.view.product.kind is Kind.NONE)
    )


def _no_product(need: Need, offers: Sequence[Offer]) -> Finding:
    rows = [
        (products.named(name), name)
        for o in offers
        for gpu in o.view.node.present
        if (name := known(gpu.name, ""))
    ]
    found = ", ".join(dict.fromkeys(row.token if row else name for row, name in rows)) or "no GPU"
    cards = {o.view.product.kind for o in offers if o.view.product.chip in need.tokens} - SWITCHED
    how = " without NVLink" if Kind.PCIE in cards else ""
    return _finding(
        "requires.gpu",
        "No GPU of the product that the profile is for",
        f"needs {'/'.join(need.tokens) or 'GPUs'}, found {found}"
        + (f": cards{how}, no HGX board" if cards else ""),
        "choose a profile for this hardware: `k3ctl plan`",
    )


def _domain_list(domains: Sequence[Domain]) -> str:
    def named(domain: Domain) -> str:
        return f"clique {domain.clique_id}" if domain.cluster_uuid else domain.name

    return "; ".join(f"{named(d)}: {d.size} GPUs on {', '.join(d.hosts)}" for d in domains) or "none"


def _natural(name: str) -> tuple[object, ...]:
    """A key that puts ``tray2`` before ``tray10``."""
    import re

    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part)
