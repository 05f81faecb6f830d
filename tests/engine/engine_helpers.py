"""What every engine test waits for and compares with."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from k3ctl import cli
from k3ctl.engine import procs, rundir
from k3ctl.engine.rundir import Run
from k3ctl.profiles import loader
from k3ctl.profiles.resolve import ResolvedConfig, resolve

ROOT = Path(cli.__file__).parents[1]
NOTHING: dict[str, list[str]] = {"processes": [], "segments": [], "scratch": []}


def until(true: Callable[[], object], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def recorded(**changes: object) -> Run:
    """A run in the state directory that no process stands behind."""
    started_at = float(changes.pop("started_at", time.time()))  # type: ignore[arg-type]
    return rundir.create(
        Run(
            id=rundir.new_id("cpu-tiny", started_at),
            profile="cpu-tiny",
            host="127.0.0.1",
            port=1,
            url="http://127.0.0.1:1",
            served_model_name="k3-tiny",
            tokenizer="",
            argv=(),
            env={},
            started_at=started_at,
            **changes,  # type: ignore[arg-type]
        )
    )


def tiny(**overrides: str) -> ResolvedConfig:
    return resolve(loader.load("cpu-tiny"), overrides)


def pids(run: Run) -> dict[str, int]:
    """Pids of a run by role, from the process tree."""

    def by_parent() -> dict[int, int]:
        return {p.ppid: p.pid for p in procs.everyone() if p.session == run.session}

    until(lambda: by_parent().get(by_parent().get(run.engine_pid, 0)))
    core = by_parent()[run.engine_pid]
    return {
        "engine": run.engine_pid,
        "core": core,
        "worker": by_parent()[core],
        "supervisor": run.supervisor_pid,
        "reaper": run.pid,
    }


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def held() -> dict[str, list[str]]:
    """What the runs of the present state directory hold: processes, shared-memory files, socket directories."""
    runs = rundir.all_runs()
    sessions = {run.session for run in runs} - {0}
    noted = [run.dir / "segments" for run in runs]
    names = {name for file in noted if file.exists() for name in file.read_text().split()}
    names |= {os.environ.get("FAKE_SHM", "-")}
    return {
        "processes": [
            f"{p.pid} {procs.command_line(p.pid)}"
            for p in procs.everyone()
            if p.session in sessions and p.state not in "ZX"
        ],
        "segments": sorted(shared_memory() & names),
        "scratch": [path for run in runs for path in run.scratch if Path(path).exists()],
    }


class Child:
    """A k3ctl process; its stderr goes to a file, so that it can be read while it runs."""

    def __init__(self, *words: str) -> None:
        self._err = tempfile.NamedTemporaryFile("w+", prefix="k3ctl-stderr-")  # noqa: SIM115 - kept open
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "k3ctl", *words],
            stdout=subprocess.PIPE,
            stderr=self._err,
            text=True,
            env=env,
        )

    def err(self) -> str:
        return Path(self._err.name).read_text()

    def said(self, text: str, within_s: float = 90.0) -> Child:
        until(lambda: text in self.err() or self.process.poll() is not None, within_s)
        assert text in self.err(), self.err()
        return self

    def ended(self) -> tuple[int, str, str]:
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out, self.err()
