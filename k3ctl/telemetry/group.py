"""GPUs of several nodes side by side: the worst first, and which of them share an NVLink domain. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from k3ctl.telemetry.view import GpuView, NodeView

_SEVERITY = {"fail": 3, "warn": 2, "info": 1}
LOST = 4


def badness(node: NodeView, gpu: GpuView) -> int:
    """0 for a GPU about which there is nothing to say, 4 for one that is lost."""
    if gpu.sample.lost:
        return LOST
    found = [_SEVERITY.get(one.severity, 0) for one in node.findings if _about(one.where, gpu.sample.index)]
    if gpu.nvlink_errors_new or gpu.sample.throttle:
        found.append(_SEVERITY["warn"])
    return max(found, default=0)


def worst_nodes_first(nodes: Iterable[NodeView]) -> list[NodeView]:
    """Nodes that are not read, then by their worst GPU or finding, then by name (``tray2`` before ``tray10``)."""

    def worst(node: NodeView) -> int:
        if node.failure:
            return LOST + 1
        whole = [_SEVERITY.get(one.severity, 0) for one in node.findings]
        return max([*whole, *(badness(node, gpu) for gpu in node.gpus)], default=0)

    return sorted(nodes, key=lambda node: (-worst(node), natural(node.source)))


def worst_gpus_first(nodes: Sequence[NodeView]) -> list[tuple[NodeView, GpuView]]:
    """All GPUs; on one node in the driver's order, which people know."""
    pairs = [(node, gpu) for node in nodes for gpu in node.gpus]
    if len(nodes) < 2:
        return pairs
    return sorted(pairs, key=lambda pair: (-badness(*pair), natural(pair[0].source), pair[1].sample.index))


def domains(nodes: Iterable[NodeView]) -> str:
    """``one NVLink domain of 16 GPUs on 4 nodes``; empty where no GPU is registered with a fabric."""
    members: dict[str, list[str]] = {}
    apart = 0
    for node in nodes:
        for gpu in node.gpus:
            if gpu.sample.nvlink_domain:
                members.setdefault(gpu.sample.nvlink_domain, []).append(node.source)
            else:
                apart += 1
    if not members:
        return ""
    rest = f"; {apart} GPU{'s' * (apart != 1)} in none" if apart else ""
    if len(members) == 1:
        (hosts,) = members.values()
        count = len(set(hosts))
        return f"one NVLink domain of {len(hosts)} GPUs on {count} node{'s' * (count != 1)}{rest}"
    listed = ", ".join(
        f"{'+'.join(sorted(set(hosts), key=natural))} ({len(hosts)})"
        for hosts in sorted(members.values(), key=lambda hosts: (-len(hosts), min(map(natural, hosts))))
    )
    return f"{len(members)} NVLink domains: {listed}{rest}"


def natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Order in which people count: digits by value."""
    return tuple(
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"([0-9]+)", name)
    )


def _about(where: str, index: int) -> bool:
    return re.search(rf"\bGPU {index}\b", where) is not None
