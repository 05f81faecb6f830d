"""Snapshots as files: ``k3ctl.nvml/1`` JSON, or the output of ``k3ctl doctor --json`` that holds one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from k3ctl import files as contents
from k3ctl.errors import UsageError
from k3ctl.gpus.types import SCHEMA, Node, Snapshot
from k3ctl.host.codec import decode, encode
from k3ctl.host.values import NOT_CAPTURED

MAX_BYTES = 32 * 1024 * 1024
"""An 18-tray snapshot is 0.4 MB; anything much larger is not one."""


FROM_A_MATRIX = ("numa_affinity", "nic_paths")
"""What only the capture of a topology matrix tells; written where it was captured."""


def to_json(snapshot: Snapshot) -> dict[str, Any]:
    """``snapshot`` as JSON data."""
    nodes = []
    for node in snapshot.nodes:
        data = encode(node)
        data["gpus"] = [
            {
                key: gpu[key]
                for key in gpu
                if ((key == "handle") == (gpu["handle"] is not None) or key == "index")
                and not (key in FROM_A_MATRIX and gpu[key] in ({}, encode(NOT_CAPTURED)))
            }
            for gpu in data["gpus"]
        ]
        nodes.append(data)
    return {"schema": SCHEMA, "meta": dict(snapshot.meta), "nodes": nodes}


def from_json(data: Any, *, source: str = "snapshot") -> tuple[Snapshot, list[str]]:
    """A snapshot and the notes on everything that had to be repaired or left out.

    Raises UsageError when ``data`` is no ``k3ctl.nvml/1`` object.
    """
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, Mapping) else type(data).__name__
        raise UsageError(
            f"{source}: no {SCHEMA} snapshot (found {found!r})",
            hint="write one with `k3ctl doctor --json > node.json`",
        )
    notes: list[str] = []
    nodes = []
    listed = data.get("nodes")
    for index, item in enumerate(listed if isinstance(listed, list) else []):
        try:
            nodes.append(decode(Node, item, notes, f"nodes[{index}]"))
        except ValueError as error:
            notes.append(f"left out {error}")
    if not nodes:
        raise UsageError(f"{source}: the snapshot holds no readable node", reasons=notes)
    meta = data.get("meta")
    return Snapshot(nodes=tuple(nodes), meta=meta if isinstance(meta, Mapping) else {}), [
        f"{source}: {note}" for note in notes
    ]


def read_json(path: Path) -> Any:
    """The JSON value in ``path``.

    Raises UsageError with one clear line for a missing, oversized, truncated or non-JSON file.
    """
    try:
        document = contents.read(path, MAX_BYTES).decode(errors="replace")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read `{path}`: {contents.reason(error)}") from error
    try:
        return json.loads(document)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"`{path}` is not JSON: {error}", hint="is the file truncated?") from error


def find(data: Any) -> Any:
    """The snapshot object inside ``data``: itself, or the one in a ``k3ctl doctor --json`` envelope."""
    if isinstance(data, Mapping) and isinstance(data.get("data"), Mapping):
        data = data["data"]
    if isinstance(data, Mapping) and isinstance(data.get("snapshot"), Mapping):
        data = data["snapshot"]
    return data


def load(path: Path | str) -> Snapshot:
    """The snapshot in ``path`` (``k3ctl.nvml/1`` or ``k3ctl doctor --json``); raises UsageError otherwise."""
    snapshot, _ = from_json(find(read_json(Path(path))), source=str(path))
    return snapshot
