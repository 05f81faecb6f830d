"""The client's live events: ``raw/events.jsonl``, one JSON object per line, ``ts`` in unix seconds.

Kinds: ``client_start``, ``client``, ``seam_missing``, ``run_start``, ``bench_start``, ``tick``,
``request``, ``bench_compile``, ``bench_done``, ``run_end``, ``fatal``. The live line, the monitor and the
partial summary of an interrupted run are all made from this file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Event = Mapping[str, Any]


def parse(line: str, key: str = "kind") -> Event | None:
    """One event (an object with ``key``), or None for an empty or damaged line."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and key in value else None


def read(path: Path) -> list[Event]:
    """Every whole event of a file; a missing file has none."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [event for line in lines if (event := parse(line)) is not None]


class Tail:
    """Reads a growing event file: each call returns the whole lines that came since the last one."""

    def __init__(self, path: Path, key: str = "kind", *, from_end: bool = False) -> None:
        self._path, self._key = path, key
        self._offset = path.stat().st_size if from_end and path.is_file() else 0

    def __call__(self) -> Iterator[Event]:
        """The events that are new since the last call."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole, newline, _ = data.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        for line in whole.decode(errors="replace").splitlines():
            if (event := parse(line, self._key)) is not None:
                yield event


def steps(events: list[Event]) -> list[list[Event]]:
    """Split a run into its concurrency steps, each starting with ``bench_start``.

    A replay's strategy does not name a concurrency: the sessions of the ``client_start`` before it are
    filled in.
    """
    out: list[list[Event]] = []
    sessions: int | None = None
    for event in events:
        if event["kind"] == "client_start":
            sessions = event.get("sessions")
        elif event["kind"] == "bench_start":
            detail = event.get("detail")
            detail = detail if isinstance(detail, Mapping) else {}
            out.append([{**event, "detail": {**detail, "sessions": sessions}}])
        elif out:
            out[-1].append(event)
    return out


def streams(step: list[Event]) -> int:
    """Concurrency of a step."""
    detail = step[0].get("detail")
    detail = detail if isinstance(detail, Mapping) else {}
    stated = detail.get("sessions") or detail.get("streams") or detail.get("max_concurrency") or 1
    return int(stated) if isinstance(stated, int | float) and math.isfinite(stated) else 1
