"""Reports of several hosts as one group; a file that cannot be used becomes one line, the others count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k3ctl.checks.finding import Finding
from k3ctl.errors import UsageError
from k3ctl.gpus.files import read_json
from k3ctl.gpus.types import Snapshot
from k3ctl.host.types import Host
from k3ctl.machine import record
from k3ctl.machine.record import Machine, hosts_of, snapshot_of


@dataclass(frozen=True)
class Gathered:
    """What several sources told: machines, findings that were made while gathering, and notes."""

    machines: tuple[Machine, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def snapshot(self) -> Snapshot:
        """The GPUs of all machines."""
        return snapshot_of(self.machines)

    @property
    def hosts(self) -> Mapping[str, Host]:
        """The hosts by name, where somebody looked."""
        return hosts_of(self.machines)


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
    """One saved report, of whatever version."""
    machines, notes = record.from_json(data, source=source)
    return Gathered(machines, notes=tuple(notes))


def combine(parts: Iterable[Gathered], notes: Iterable[str] = ()) -> Gathered:
    """One group out of several parts. Two hosts of one name are kept apart by a number."""
    machines: list[Machine] = []
    findings: list[Finding] = []
    collected = list(notes)
    taken: set[str] = set()
    for part in parts:
        for machine in part.machines:
            name = _free_name(machine.hostname, taken)
            if name != machine.hostname:
                collected.append(
                    f"two reports are from a host named `{machine.hostname}`; "
                    f"the later one is shown as `{name}`"
                )
            taken.add(name)
            machines.append(machine.named(name))
        findings += part.findings
        collected += part.notes
    return Gathered(tuple(machines), tuple(findings), tuple(collected))


def _free_name(name: str, taken: set[str]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}#{number}"
    return free
