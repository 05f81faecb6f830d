"""Findings of a snapshot, and snapshots with something changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from k3ctl.checks import evaluate
from k3ctl.gpus import Snapshot
from k3ctl.host.types import Host
from k3ctl.profiles.schema import Requires

Load = Callable[[str], Snapshot]


def ids(snapshot: Snapshot, host: Host | None = None, requires: Requires | None = None) -> set[str]:
    return {finding.id for finding in evaluate(snapshot, host, requires)}


def changed(snapshot: Snapshot, **node_values: object) -> Snapshot:
    return replace(snapshot, nodes=(replace(snapshot.nodes[0], **node_values),))  # type: ignore[arg-type]


def with_gpu(snapshot: Snapshot, index: int, **values: object) -> Snapshot:
    gpus = list(snapshot.nodes[0].gpus)
    gpus[index] = replace(gpus[index], **values)  # type: ignore[arg-type]
    return changed(snapshot, gpus=tuple(gpus))
