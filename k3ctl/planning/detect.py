"""Hardware from this host, or from the snapshots that ``k3ctl doctor --json`` writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from k3ctl.checks import merge
from k3ctl.checks.domains import Domain as NvlinkDomain
from k3ctl.checks.domains import domains as nvlink_domains
from k3ctl.checks.merge import Gathered
from k3ctl.checks.multicast import combined, judge
from k3ctl.checks.products import classify
from k3ctl.errors import UsageError
from k3ctl.facts import products
from k3ctl.gpus.types import Gpu, Memory, Node, Snapshot
from k3ctl.host.values import known
from k3ctl.machine.read import read
from k3ctl.planning.hardware import Domain, Hardware, described, none


def given(entries: Iterable[str]) -> Hardware:
    """Hardware from ``--hardware`` entries: one ``PRODUCT:COUNT``, or snapshot files of one or more hosts."""
    entries = list(entries)
    paths = [Path(entry) for entry in entries]
    if len(entries) == 1 and not paths[0].is_file() and ":" in entries[0]:
        return described(entries[0])
    missing = [entry for entry, path in zip(entries, paths, strict=True) if not path.is_file()]
    if missing:
        raise UsageError(
            f"no snapshot file `{missing[0]}`",
            hint="write one with `k3ctl doctor --json > node.json`, or describe the hardware: `GB300:16`",
        )
    return of_machines(merge.read(paths), source=", ".join(path.name for path in paths))


def this_host() -> Hardware:
    """This host: its GPUs, read by NVML, and the facts beside them."""
    return of_machines(Gathered((read(),)), source="this host")


def of_machines(machines: Gathered, source: str) -> Hardware:
    """The hardware in what was read; it remembers the readings."""
    return replace(from_snapshots([machines.snapshot], source), machines=machines)


def from_snapshots(snapshots: Iterable[Snapshot], source: str) -> Hardware:
    """The hardware in ``snapshots``: the product of the largest NVLink domain, and all hosts that have it."""
    nodes = [node for shot in snapshots for node in shot.nodes]
    gpus = [(node, gpu) for node in nodes for gpu in node.present if not gpu.in_mig_mode]
    if not gpus:
        return none(source)
    found = nvlink_domains([Snapshot(nodes=tuple(nodes))])
    chip = found[0].product.chip if found else classify(gpus[0][0]).chip
    same = [(node, gpu) for node, gpu in gpus if classify(node).chip == chip]
    memory = [gpu.memory.total for _, gpu in same if isinstance(gpu.memory, Memory)]
    product = products.common([name for _, gpu in same if (name := known(gpu.name, ""))])
    hosts = tuple(dict.fromkeys(node.hostname for node, _ in same))
    return Hardware(
        source=source,
        product=product.token if product else chip,
        hosts=hosts,
        gpus=len(same),
        gpu_bytes=min(memory, default=product.memory_bytes if product else 0),
        capability=_capability(same[0][1]) or (product.capability if product else None),
        nominal_gb=product.nominal_gb if product else 0,
        domains=tuple(_domain(d, nodes) for d in found if d.product.chip == chip and d.size > 1),
        driver=min((known(node.nvml.driver, "") for node, _ in same), default=""),
        environment={name: value for node, _ in same for name, value in node.environment.items()},
        notes=_notes(nodes, hosts),
    )


def _domain(domain: NvlinkDomain, nodes: list[Node]) -> Domain:
    members = [node for node in nodes if node.hostname in domain.hosts]
    verdicts = [judge(node, domain.product).verdict for node in members]
    return Domain(
        name=f"clique {domain.clique_id}" if domain.cluster_uuid else domain.name,
        hosts=domain.hosts,
        gpus=domain.size,
        multicast=combined(verdicts),
        largest_tp=domain.largest_tp,
    )


def _capability(gpu: Gpu) -> tuple[int, int] | None:
    value = known(gpu.compute_capability, None)
    return (value[0], value[1]) if value and len(value) > 1 else None


def _notes(nodes: list[Node], hosts: tuple[str, ...]) -> tuple[str, ...]:
    notes = []
    lost = [
        f"{node.hostname} GPU {gpu.index}" for node in nodes for gpu in node.gpus if gpu not in node.present
    ]
    if lost:
        notes.append(f"not usable: {', '.join(lost)}")
    mig = [f"{node.hostname} GPU {gpu.index}" for node in nodes for gpu in node.present if gpu.in_mig_mode]
    if mig:
        notes.append(f"in MIG mode: {', '.join(mig)}")
    left_out = [node.hostname for node in nodes if node.hostname not in hosts]
    if left_out:
        notes.append(f"other GPUs, left out: {', '.join(left_out)}")
    return tuple(notes)
