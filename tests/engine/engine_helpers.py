"""What every engine test waits for and compares with."""

from __future__ import annotations

import time
from collections.abc import Callable

from k3ctl.engine import procs
from k3ctl.engine.rundir import Run
from k3ctl.profiles import loader
from k3ctl.profiles.resolve import ResolvedConfig, resolve

NOTHING: dict[str, list[str]] = {"processes": [], "segments": [], "scratch": []}


def until(true: Callable[[], object], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def tiny(**overrides: str) -> ResolvedConfig:
    return resolve(loader.load("cpu-tiny"), overrides)


def pids(run: Run) -> dict[str, int]:
    """Pids of a run by role, from the process tree."""
    by_parent = {p.ppid: p.pid for p in procs.everyone() if p.session == run.session}
    core = by_parent[run.engine_pid]
    return {
        "engine": run.engine_pid,
        "core": core,
        "worker": by_parent[core],
        "supervisor": run.supervisor_pid,
        "reaper": run.pid,
    }
