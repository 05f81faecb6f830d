"""How busy the load client is: processor time of its processes and of the machine (``raw/client.jsonl``).

A client process is one Python event loop: near a whole processor it reads and sends late, and its own speed becomes
part of the number.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FILE = "client.jsonl"
INTERVAL_S = 1.0
TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CpuSample:
    """Processor seconds so far. ``processes`` by pid; ``host_busy_s`` and ``host_s`` over all processors."""

    ts: float
    processes: Mapping[int, float]
    host_busy_s: float
    host_s: float


@dataclass(frozen=True)
class ClientLoad:
    """Shares over a window: of one processor for the busiest client process, of the machine for everything."""

    busiest: float
    processes: int
    host: float | None


def take(group: int, ts: float, proc: Path = Path("/proc")) -> CpuSample:
    """The processes of a process group now; one that ends meanwhile is left out."""
    found = {}
    for entry in proc.glob("[0-9]*/stat"):
        try:
            text = entry.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # after the name, which may hold anything: state, parent, group, …; utime and stime are the 12th and 13th
        after = text.rpartition(")")[2].split()
        if len(after) > 12 and int(after[2]) == group:
            found[int(entry.parent.name)] = (int(after[11]) + int(after[12])) / TICKS_S
    busy, whole = _host(proc)
    return CpuSample(ts, found, busy, whole)


class Recorder:
    """Call it as often as you like with the client's process group: at most one sample a second is kept."""

    def __init__(self, raw: Path) -> None:
        self._raw, self._next = raw, 0.0

    def __call__(self, group: int) -> None:
        """Take and keep a sample, when it is time."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + INTERVAL_S
            append(self._raw, take(group, time.time()))


def append(raw: Path, sample: CpuSample) -> None:
    """Add a sample to the file."""
    line = {"ts": sample.ts, "cpu_s": sample.processes, "host": [sample.host_busy_s, sample.host_s]}
    with (raw / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, separators=(",", ":")) + "\n")


def read(raw: Path) -> list[CpuSample]:
    """The samples of a raw directory; damaged lines are left out."""
    path = raw / FILE
    return list(_lines(path.read_text(encoding="utf-8"))) if path.is_file() else []


def in_window(samples: Sequence[CpuSample], start: float | None, end: float | None) -> ClientLoad | None:
    """How busy the client was in ``start..end``; None with fewer than two samples."""
    inside = [s for s in samples if (start is None or s.ts >= start) and (end is None or s.ts <= end)]
    if len(inside) < 2 or inside[-1].ts <= inside[0].ts:
        return None
    seconds = inside[-1].ts - inside[0].ts
    used: dict[int, float] = {}
    for before, after in itertools.pairwise(inside):
        for pid, cpu_s in after.processes.items():
            used[pid] = used.get(pid, 0.0) + max(0.0, cpu_s - before.processes.get(pid, cpu_s))
    host_s = inside[-1].host_s - inside[0].host_s
    return ClientLoad(
        busiest=max(used.values(), default=0.0) / seconds,
        processes=len(used),
        host=(inside[-1].host_busy_s - inside[0].host_busy_s) / host_s if host_s > 0 else None,
    )


def _host(proc: Path) -> tuple[float, float]:
    try:
        words = (proc / "stat").read_text(encoding="utf-8").splitlines()[0].split()[1:9]
    except (OSError, IndexError):
        return 0.0, 0.0
    ticks = [int(word) for word in words]
    idle = sum(ticks[3:5])  # idle and waiting for a disk
    return (sum(ticks) - idle) / TICKS_S, sum(ticks) / TICKS_S


def _lines(text: str) -> Iterator[CpuSample]:
    for line in text.splitlines():
        try:
            data = json.loads(line)
            busy, whole = data["host"]
            cpu = {int(pid): float(seconds) for pid, seconds in data["cpu_s"].items()}
            yield CpuSample(float(data["ts"]), cpu, float(busy), float(whole))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
