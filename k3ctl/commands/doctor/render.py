"""A report as text for people, and one rule as text."""

from __future__ import annotations

from collections.abc import Iterable

from k3ctl.checks.finding import Rule, Severity
from k3ctl.checks.report import Group, Report, Runnable, grouped
from k3ctl.checks.view import size_text
from k3ctl.gpus.types import Node
from k3ctl.host.types import Active, Host, Probe
from k3ctl.output import Block, Lines, Table
from k3ctl.planning.rules import PlanRule

MARKS = {
    Severity.FAIL: "FAIL",
    Severity.WARN: "warn",
    Severity.UNKNOWN: "unknown",
    Severity.INFO: "info",
    Severity.OK: "ok",
}
MOST_PLACES = 8


def blocks(report: Report) -> list[Block]:
    """Head lines, the findings worst first, and what can run."""
    out: list[Block] = [Lines(_head(report))]
    hosts = {node.hostname for node in report.snapshot.nodes} | {finding.node for finding in report.findings}
    rows = [_row(group) for group in grouped(report.findings, name_hosts=len(hosts - {""}) > 1)]
    if rows:
        out.append(Table(["", "finding", "what was read, and what to do"], rows))
    out.append(Lines(_tail(report)))
    return out


def _head(report: Report) -> list[str]:
    nodes = report.snapshot.nodes
    lines = [_node_line(node, report.hosts.get(node.hostname)) for node in nodes[:4]]
    if len(nodes) > 4:
        lines.append(f"… and {len(nodes) - 4} more hosts")
    lines += [_probe_line(name, host.probe) for name, host in report.hosts.items() if host.probe]
    lines += [_active_line(name, host.active) for name, host in report.hosts.items() if host.active]
    v = report.verdict
    if v.gpu_count:
        lines.append(
            f"{v.product}: {v.gpu_count} GPUs, largest NVLink domain {_told(v.nvlink_domain_gpus)}, "
            f"largest K3 tensor-parallel size {_told(v.k3_tp)}, multicast {v.multicast}, IMEX {v.imex}"
        )
    return lines


def _told(size: int | None) -> str:
    return "unknown" if size is None else str(size)


def _probe_line(name: str, probe: Probe) -> str:
    rates = [copy.gb_s for copy in probe.copies if copy.gb_s is not None]
    right = sum(bool(copy.correct) for copy in probe.copies)
    span = f", {min(rates):.0f} to {max(rates):.0f} GB/s" if rates else ""
    multicast = f", multicast memory: {probe.multicast}" if probe.multicast else ""
    return (
        f"probe on {name}: {right} of {len(probe.copies)} copies between GPUs arrived right{span}{multicast}"
    )


def _active_line(name: str, active: Active) -> str:
    rates = ", ".join(f"GPU {t.gpu} {t.gb_s:.0f}" for t in active.triads if t.gb_s is not None)
    parts = [f"memory bandwidth GB/s: {rates}"] if rates else []
    if active.collective and active.collective.bus_gb_s is not None:
        c = active.collective
        size = f"{c.bytes / 2**20:.0f} MiB over {c.ranks} GPUs"
        parts.append(f"all-reduce of {size}: {c.bus_gb_s:.0f} GB/s bus (NCCL {c.nccl or 'unknown'})")
    if active.changed:
        parts.append(f"otherwise than serve: {', '.join(active.changed)} (no NVLink multicast here)")
    return f"measured on {name}: {'; '.join(parts) or 'nothing'}"


def _node_line(node: Node, host: Host | None) -> str:
    parts = [node.hostname]
    if node.gpus:
        names = dict.fromkeys(str(gpu.name) for gpu in node.present if gpu.name)
        parts.append(f"{len(node.gpus)} × {', '.join(names) or 'GPU'}")
    else:
        parts.append("no GPU" if node.nvml.error is not None else "GPUs not captured")
    if node.nvml.driver:
        cuda = node.nvml.cuda_driver or 0
        parts.append(
            f"driver {node.nvml.driver}" + (f" (CUDA {cuda // 1000}.{cuda % 1000 // 10})" if cuda else "")
        )
    if node.cpu.count:
        parts.append(f"{node.cpu.count} CPUs")
    if host and host.memory_total_bytes:
        available = (host.memory_available_bytes or 0) / 2**30
        parts.append(f"{available:.0f} of {host.memory_total_bytes / 2**30:.0f} GiB memory free")
    if host and host.shm_bytes is not None:
        parts.append(f"/dev/shm {size_text(host.shm_bytes)}")
    cache = (
        next((disk for disk in host.disks if disk.role == "hf-cache" and disk.free_bytes), None)
        if host
        else None
    )
    if cache and cache.free_bytes:
        parts.append(f"cache disk {cache.free_bytes / 1e12:.2f} TB free ({cache.fs_type or '?'})")
    if host and host.k3ctl:
        parts.append(_versions(host))
    return " · ".join(parts)


def _versions(host: Host) -> str:
    named = [f"{name} {host.packages[name]}" for name in ("vllm", "torch") if name in host.packages]
    nccl = next((lib.version for lib in host.libraries if lib.name == "nccl" and lib.version), None)
    return ", ".join([*(named or ["no vLLM"]), *([f"NCCL {nccl}"] if nccl else [])])


def _row(group: Group) -> list[str]:
    finding = group.finding
    lines = [finding.title]
    lines += [f"{place}: {read}" if place else read for place, read in group.places[:MOST_PLACES]]
    if len(group.places) > MOST_PLACES:
        lines.append(f"… and {len(group.places) - MOST_PLACES} more places")
    lines += [f"blocks {finding.blocks}"] if finding.blocks else []
    return [MARKS[finding.severity], finding.id, "\n".join([*lines, f"→ {finding.remedy}"])]


def _tail(report: Report) -> list[str]:
    counts = {s: sum(f.severity is s for f in report.findings) for s in Severity}
    lines = [
        f"{counts[Severity.FAIL]} failed, {_count(counts[Severity.WARN], 'warning')}, "
        f"{_count(counts[Severity.INFO], 'note')}"
        + (f", {counts[Severity.UNKNOWN]} unknown" if counts[Severity.UNKNOWN] else "")
        + (f" for profile {report.profile}" if report.profile else "")
    ]
    lines += _can_run(report.runnable)
    if report.findings:
        lines.append(f"why: `k3ctl doctor --explain {report.findings[0].id}`")
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _can_run(entries: Iterable[Runnable]) -> list[str]:
    entries = list(entries)
    if not entries:
        return []
    possible = [_named(entry) for entry in entries if entry.possible]
    lines = [f"can run here: {', '.join(possible) if possible else 'none of the profiles'}"]
    if out := dict.fromkeys(text for entry in entries if entry.possible for text in entry.left_out):
        lines.append(f"left out: {'; '.join(out)}")
    undecided = [entry for entry in entries if entry.standing == "may run"]
    for unknown, names in _alike(undecided).items():
        lines.append(f"may run: {', '.join(names)} (unknown: {'; '.join(unknown)})")
    for entry in (e for e in entries if e.standing == "needs more hosts"):
        unread = f"; unknown: {'; '.join(entry.unknown)}" if entry.unknown else ""
        lines.append(f"may run with more hosts: {entry.profile} ({entry.reasons[0]}{unread})")
    refused = [entry for entry in entries if entry.standing == "cannot run"]
    for entry in (e for e in refused if not e.other_hardware):
        lines.append(f"cannot run {entry.profile}: {'; '.join(entry.reasons)}")
    other = [entry.profile for entry in refused if entry.other_hardware]
    return [*lines, f"for other hardware: {', '.join(other)}"] if other else lines


def _alike(entries: Iterable[Runnable]) -> dict[tuple[str, ...], list[str]]:
    """Profiles by what is unknown about them: one line for all that lack the same."""
    out: dict[tuple[str, ...], list[str]] = {}
    for entry in entries:
        out.setdefault(entry.unknown, []).append(entry.profile)
    return out


def _named(entry: Runnable) -> str:
    return f"{entry.profile} (this host's share of {entry.hosts} hosts)" if entry.hosts else entry.profile


def plan_rule(rule: PlanRule) -> dict[str, str]:
    """One of plan's rules, which a profile's findings may name, as data."""
    return {"id": rule.id, "title": rule.title, "effect": rule.effect.value, "vllm": rule.vllm} | {
        "source": rule.source,
        "date": rule.date,
    }


def plan_rule_blocks(rule: PlanRule) -> list[Block]:
    """The same as text."""
    return [
        Lines(
            [
                f"{rule.id}: {rule.title}",
                f"else:     {rule.effect.value}",
                f"applies:  vLLM {rule.vllm}",
                f"source:   {rule.source} ({rule.date})",
            ]
        )
    ]


def rule_blocks(rule: Rule) -> list[Block]:
    """One rule as text."""
    data = rule.to_json()
    lines = [
        f"{rule.id} ({MARKS[rule.severity].lower()}): {rule.title}",
        f"blocks:   {rule.blocks or 'nothing'}",
        f"do:       {rule.remedy}",
        f"applies:  {rule.applies}; products {', '.join(data['products'])}",
    ]
    lines += [f"source:   {s.url} ({s.date}){' ' + s.note if s.note else ''}" for s in rule.sources]
    return [Lines(lines)]
