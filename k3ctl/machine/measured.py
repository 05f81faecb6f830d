"""The last ``doctor --active`` of this machine, kept in the state directory for the bundles of later benchmarks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from k3ctl import files
from k3ctl.engine import rundir
from k3ctl.host.codec import encode
from k3ctl.host.types import Active

SCHEMA = "k3ctl.active/1"
MAX_BYTES = 2**20


def place() -> Path:
    """Where it is kept."""
    return rundir.state_root() / "active.json"


def keep(active: Active, now: float | None = None) -> None:
    """Keep a result with at least one bandwidth; one that cannot be written is not kept, and that is no error."""
    if not any(triad.gb_s for triad in active.triads):
        return
    record = {
        "schema": SCHEMA,
        "measured_at": time.time() if now is None else now,
        "active": encode(active),
    }
    try:
        files.private_directory(place().parent)
        files.replace(place(), (json.dumps(record, indent=1) + "\n").encode())
    except OSError:
        return


def of_gpus(uuids: Iterable[str]) -> dict[str, Any] | None:
    """What was measured, when it was these GPUs, all of them; else None."""
    wanted = set(uuids)
    try:
        record = json.loads(files.read(place(), MAX_BYTES))
        measured = {triad["uuid"] for triad in record["active"]["triads"] if triad["gb_s"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    known = record.get("schema") == SCHEMA and bool(wanted) and wanted <= measured
    return dict(record) if known else None
