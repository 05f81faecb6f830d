"""A process tree ends from its top, whoever is killed and however busy the others are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime import parent_death

ROOT = Path(parent_death.__file__).parents[1]
TREE = """
import multiprocessing, os, sys, time
from runtime import parent_death

def node(depth, late):
    if late:
        while os.getppid() == multiprocessing.parent_process().pid:
            time.sleep(0.02)
    parent_death.follow()
    grow(depth - 1, late)

def grow(depth, late):
    if depth:
        multiprocessing.get_context("spawn").Process(target=node, args=(depth, late)).start()
    sys.stdout.write(f"{os.getpid()}\\n")
    sys.stdout.flush()
    time.sleep(60)

if __name__ == "__main__":
    grow(int(sys.argv[1]), sys.argv[2] == "late")
"""


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def until(true: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


def tree(path: Path, depth: int, kind: str = "early", **env: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A process with a chain of ``depth`` descendants, and their pids from the top."""
    script = path / "tree.py"
    script.write_text(TREE)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    process = subprocess.Popen(
        [sys.executable, str(script), str(depth), kind], stdout=subprocess.PIPE, text=True, env=environ
    )
    assert process.stdout is not None
    told = 1 if kind == "late" else depth + 1
    return process, [int(process.stdout.readline()) for _ in range(told)]


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_kill_9_of_the_top_ends_everything_below_even_what_is_stopped(tmp_path: Path, stopped: bool) -> None:
    process, pids = tree(tmp_path, 2, **{parent_death.ENV: "1"})
    if stopped:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
    process.kill()
    until(lambda: not any(lives(pid) for pid in pids))
    process.wait()


def test_a_process_whose_parent_is_gone_before_it_asks_ends_at_once(tmp_path: Path) -> None:
    process, _ = tree(tmp_path, 1, "late", **{parent_death.ENV: "1"})
    below = lambda: [pid for pid in children(process.pid) if b"spawn_main" in _command(pid)]  # noqa: E731
    until(lambda: bool(below()))
    (child,) = below()
    time.sleep(0.5)
    assert lives(child)
    process.kill()
    until(lambda: not lives(child))
    process.wait()


def test_without_the_variable_nothing_is_changed(tmp_path: Path) -> None:
    process, pids = tree(tmp_path, 1)
    process.kill()
    process.wait()
    time.sleep(0.5)
    (left,) = [pid for pid in pids if pid != process.pid]
    assert lives(left)
    os.kill(left, signal.SIGKILL)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
