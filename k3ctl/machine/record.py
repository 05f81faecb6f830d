"""The record of one machine, as data and as JSON.

Saved forms: the data of ``k3ctl doctor --json`` (a ``k3ctl.nvml/1`` snapshot with ``k3ctl.host/1`` records beside it),
its envelope, and the older bare snapshot, which knows no more of the host than NVML's side of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from k3ctl.gpus import files
from k3ctl.gpus.types import Node, Snapshot
from k3ctl.host.codec import decode, encode
from k3ctl.host.types import SCHEMA as HOST_SCHEMA
from k3ctl.host.types import Host


@dataclass(frozen=True)
class Machine:
    """``node``: GPUs, driver and CUDA's attributes; ``host``: what surrounds them, None where nobody looked."""

    node: Node
    host: Host | None = None

    @property
    def hostname(self) -> str:
        """The name that both halves go by."""
        return self.node.hostname

    def named(self, hostname: str) -> Machine:
        """The same machine under another name."""
        host = replace(self.host, hostname=hostname) if self.host else None
        return Machine(replace(self.node, hostname=hostname), host)


def snapshot_of(machines: Iterable[Machine]) -> Snapshot:
    """The GPUs of the machines."""
    return Snapshot(nodes=tuple(machine.node for machine in machines))


def hosts_of(machines: Iterable[Machine]) -> dict[str, Host]:
    """The hosts by name, where somebody looked."""
    return {machine.hostname: machine.host for machine in machines if machine.host is not None}


def to_json(machines: Iterable[Machine]) -> dict[str, Any]:
    """``snapshot`` and ``hosts`` of a report."""
    machines = tuple(machines)
    hosts = [{"schema": HOST_SCHEMA} | encode(host) for host in hosts_of(machines).values()]
    return {"snapshot": files.to_json(snapshot_of(machines)), "hosts": hosts}


def from_json(data: Any, *, source: str) -> tuple[tuple[Machine, ...], list[str]]:
    """The machines of a saved report, and notes on everything that had to be repaired or left out.

    Raises UsageError when there is no readable snapshot in it.
    """
    snapshot, notes = files.from_json(files.find(data), source=source)
    body = data.get("data", data) if isinstance(data, Mapping) else {}
    listed = body.get("hosts") if isinstance(body, Mapping) else None
    hosts: dict[str, Host] = {}
    for index, item in enumerate(listed if isinstance(listed, list) else []):
        repairs: list[str] = []
        try:
            host = decode(Host, item, repairs, f"hosts[{index}]")
        except ValueError as error:
            notes.append(f"{source}: left out {error}")
            continue
        hosts[host.hostname] = host
        notes += [f"{source}: {repair}" for repair in repairs]
    return tuple(Machine(node, hosts.get(node.hostname)) for node in snapshot.nodes), notes


def load(path: Path) -> tuple[tuple[Machine, ...], list[str]]:
    """The machines in a file; raises UsageError."""
    return from_json(files.read_json(path), source=path.name)
