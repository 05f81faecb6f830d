"""Reports of several hosts as one group; a file that cannot be used becomes one line, the others count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from k3ctl.checks.finding import Finding
from k3ctl.errors import UsageError
from k3ctl.gpus.files import find, from_json, read_json
from k3ctl.gpus.types import Node, Snapshot
from k3ctl.host.codec import decode
from k3ctl.host.types import Host


@dataclass(frozen=True)
class Gathered:
    """What several sources told: hosts by name, findings that were made while gathering, and notes."""

    snapshot: Snapshot
    hosts: Mapping[str, Host]
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = field(default=())


def read(paths: Iterable[Path]) -> Gathered:
    """Gather saved reports; raises UsageError when none of them can be used."""
    parts, notes = [], []
    for path in paths:
        try:
            parts.append(parse(read_json(path), source=path.name))
        except UsageError as error:
            notes.append(error.message)
    if not parts:
        raise UsageError(
            "no report could be used", reasons=notes, hint="write one with `k3ctl doctor --json > node.json`"
        )
    return combine(parts, notes)


def parse(data: Any, *, source: str) -> Gathered:
    """One saved report: a ``k3ctl doctor --json`` envelope, its data, or a bare snapshot."""
    snapshot, notes = from_json(find(data), source=source)
    body = data.get("data", data) if isinstance(data, Mapping) else {}
    listed = body.get("hosts") if isinstance(body, Mapping) else None
    hosts = {}
    for index, item in enumerate(listed if isinstance(listed, list) else []):
        repairs: list[str] = []
        try:
            host = decode(Host, item, repairs, f"hosts[{index}]")
        except ValueError as error:
            notes.append(f"{source}: left out {error}")
            continue
        hosts[host.hostname] = host
        notes += [f"{source}: {repair}" for repair in repairs]
    return Gathered(snapshot, hosts, notes=tuple(notes))


def combine(parts: Iterable[Gathered], notes: Iterable[str] = ()) -> Gathered:
    """One group out of several parts. Two hosts of one name are kept apart by a number."""
    nodes: list[Node] = []
    hosts: dict[str, Host] = {}
    findings: list[Finding] = []
    collected = list(notes)
    taken: set[str] = set()
    for part in parts:
        for node in part.snapshot.nodes:
            name = _free_name(node.hostname, taken)
            if name != node.hostname:
                collected.append(
                    f"two reports are from a host named `{node.hostname}`; the later one is shown as `{name}`"
                )
            taken.add(name)
            nodes.append(replace(node, hostname=name))
            if node.hostname in part.hosts:
                hosts[name] = replace(part.hosts[node.hostname], hostname=name)
        findings += part.findings
        collected += part.notes
    return Gathered(Snapshot(nodes=tuple(nodes)), hosts, tuple(findings), tuple(collected))


def _free_name(name: str, taken: set[str]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}#{number}"
    return free
