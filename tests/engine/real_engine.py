"""What the tests against the real vLLM share: who is who, a load, and counts of this machine before and after."""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_helpers import shared_memory, until

from k3ctl.engine import procs, rundir
from k3ctl.engine.client import Client
from k3ctl.engine.rundir import Run
from k3ctl.errors import EngineError


def need_engine() -> None:
    """Skips where vLLM is not installed. An installed one that k3ctl does not find is a failure."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: `make setup-dev`")


def roles(run: Run) -> dict[str, int]:
    """Pid by role. vLLM names its processes; the API server is the one that k3ctl started."""
    found = {"engine": run.engine_pid, "supervisor": run.supervisor_pid, "reaper": run.pid}
    for process in (p for p in procs.everyone() if p.session == run.session):
        title = procs.command_line(process.pid)
        if "EngineCore" in title:
            found["core"] = process.pid
        elif "Worker" in title:
            found["worker"] = process.pid
    return found


def load(url: str, requests: int = 8, tokens: int = 900) -> list[threading.Thread]:
    """Requests that run for a while; returns when half of them do."""

    def send() -> None:
        body = {"model": "k3-tiny", "prompt": list(range(2, 40)), "max_tokens": tokens, "ignore_eos": True}
        with contextlib.suppress(EngineError):
            Client(url, timeout_s=120).json("/v1/completions", body)

    threads = [threading.Thread(target=send, daemon=True) for _ in range(requests)]
    for thread in threads:
        thread.start()
    until(lambda: Client(url).load().running >= requests / 2, 60)
    return threads


SHM = Path("/dev/shm")


class Census:
    """Processes and shared memory that exist because of a test, wherever they have got to.

    A process is the test's when its environment names the test's state directory, or when it is of a run's session
    (vLLM's titles overwrite the environment); a segment, when it is new and no process of somebody else's holds it.
    """

    def __init__(self, state_dir: Path) -> None:
        self._mark = f"K3CTL_STATE_DIR={state_dir}\0".encode()
        self._before = shared_memory()

    def processes(self) -> list[int]:
        sessions = {run.session for run in rundir.all_runs()} - {0}
        living = [p for p in procs.everyone() if p.state not in "ZX"]
        return [p.pid for p in living if p.session in sessions or self._marked(p.pid)]

    def segments(self) -> set[str]:
        new = {name: inode for name, inode in inodes().items() if name not in self._before}
        if new:
            ours = set(self.processes())
            others = {inode for p in procs.everyone() if p.pid not in ours for inode in held_inodes(p.pid)}
            new = {name: inode for name, inode in new.items() if inode not in others}
        return set(new)

    def counts(self) -> dict[str, int]:
        return {"processes": len(self.processes()), "segments": len(self.segments())}

    def empty(self, within_s: float) -> None:
        """Wait until nothing is left; fails with what is."""
        with contextlib.suppress(AssertionError):
            until(lambda: self.counts() == NONE, within_s)
        processes = [f"{pid} {procs.command_line(pid)}" for pid in self.processes()]
        assert (processes, self.segments()) == ([], set())

    def _marked(self, pid: int) -> bool:
        try:
            return self._mark in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False


NONE = {"processes": 0, "segments": 0}


def inodes() -> dict[str, int]:
    """Shared-memory files by name."""
    found = {}
    for name in shared_memory():
        with contextlib.suppress(OSError):
            found[name] = (SHM / name).stat().st_ino
    return found


def held_inodes(pid: int) -> Iterator[int]:
    """Shared-memory files that a process has mapped or open. By inode: a semaphore is mapped under an earlier name."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            if "/dev/shm/" in line:
                yield int(line.split()[4])
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith("/dev/shm/"):
                    yield link.stat().st_ino


def pss_kib(pid: int) -> int:
    """Memory of a process with shared pages counted once over all that share them."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
