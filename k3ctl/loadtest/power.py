"""Watches the GPUs of the server while the client loads it: ``raw/power.jsonl``, four readings a second.

The first line says which GPUs these are, or why that is not known; then one reading a line. A process on a GPU is the
server's own when it belongs to the session of its run, another's when it does not, and unseen when this host's
``/proc`` does not know it (another PID namespace).
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from k3ctl.deployment import CPU
from k3ctl.engine import rundir
from k3ctl.errors import K3Error
from k3ctl.gpus.collect import binding
from k3ctl.gpus.energy import EnergyReader, EnergyReading
from k3ctl.loadtest.target import Target

FILE = "power.jsonl"
SCHEMA = "k3ctl.power/1"
INTERVAL_S = 0.25
END_LIMIT_S = 5.0
"""A driver call may never come back: the sampler is not waited for longer than this."""
ON_CPU = "the engine runs on the CPU"


@dataclass(frozen=True)
class GpuPower:
    """One GPU in one reading. ``own``, ``foreign``, ``unseen``: processes by whose they are; None: not told."""

    index: int
    energy_mj: int | None = None
    power_mw: int | None = None
    own: int | None = None
    foreign: int | None = None
    unseen: int | None = None


@dataclass(frozen=True)
class PowerSample:
    """All GPUs at one moment; ``ts`` unix seconds."""

    ts: float
    gpus: tuple[GpuPower, ...]


@dataclass(frozen=True)
class PowerLog:
    """What was read. ``visible``: NVML indices that the engine can see; ``unknown``: why nothing was read."""

    samples: tuple[PowerSample, ...] = ()
    visible: tuple[int, ...] = ()
    unknown: str = "power was not sampled"


NO_POWER = PowerLog()


class PowerSampler:
    """``with PowerSampler(target, raw)``: samples in a thread of its own; whatever NVML does, the load goes on."""

    def __init__(self, target: Target, raw: Path, *, nv: Any = None, interval_s: float = INTERVAL_S) -> None:
        self._path, self._interval_s = raw / FILE, interval_s
        self._visible, self._session, unknown = _whose(target)
        self._reader: EnergyReader | None = None
        if not unknown:
            self._reader = EnergyReader(nv if nv is not None else binding())
            unknown = self._reader.error
        self._unknown = unknown
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="k3ctl-power", daemon=True)

    def __enter__(self) -> PowerSampler:
        head = {"schema": SCHEMA, "visible": list(self._visible), "unknown": self._unknown}
        self._path.write_text(json.dumps(head) + "\n", encoding="utf-8")
        if not self._unknown:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(END_LIMIT_S)

    def _loop(self) -> None:
        assert self._reader is not None
        while True:
            gpus = [_gpu(reading, self._session) for reading in self._reader.read(self._visible)]
            line = {"ts": time.time(), "gpus": [asdict(gpu) for gpu in gpus]}
            if self._stop.is_set():  # after the end nothing is added to files that are about to be sealed
                break
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
            self._stop.wait(self._interval_s)
        self._reader.close()


def read(raw: Path) -> PowerLog:
    """The log of a raw directory; whole lines only."""
    path = raw / FILE
    if not path.is_file():
        return NO_POWER
    lines = [line for text in path.read_text(encoding="utf-8").splitlines() if (line := _line(text))]
    if not lines or lines[0].get("schema") != SCHEMA:
        return NO_POWER
    head, *rest = lines
    return PowerLog(
        tuple(
            PowerSample(float(line["ts"]), tuple(GpuPower(**gpu) for gpu in line["gpus"])) for line in rest
        ),
        tuple(int(index) for index in head["visible"]),
        str(head["unknown"]),
    )


def _whose(target: Target) -> tuple[tuple[int, ...], int, str]:
    """NVML indices that the engine can see and the session of its run; or why they are not known."""
    if target.deployment.gpu == CPU:
        return (), 0, ON_CPU
    if target.run_dir is None:
        return (), 0, "k3ctl did not start the server, so which GPUs are its own is not known"
    try:
        run = rundir.read(Path(target.run_dir))
    except K3Error as error:
        return (), 0, error.message
    seen = run.launch.get("gpus")
    if not seen:
        return (), 0, "the run's record names no GPUs"
    return tuple(int(gpu["index"]) for gpu in seen), run.session, ""


def _gpu(reading: EnergyReading, session: int) -> GpuPower:
    if reading.pids is None:
        return GpuPower(reading.index, reading.energy_mj, reading.power_mw)
    sessions = [_session(pid) for pid in reading.pids]
    own = sum(found == session for found in sessions)
    unseen = sum(found is None for found in sessions)
    return GpuPower(
        reading.index, reading.energy_mj, reading.power_mw, own, len(sessions) - own - unseen, unseen
    )


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _line(text: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
