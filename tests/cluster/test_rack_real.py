"""The real vLLM (CPU engine, tensor parallel) spread over trays: it serves, and a death leaves nothing within 15 s."""

from __future__ import annotations

import os
import signal
import time

import pytest
from lab import Lab
from test_rack_deaths import Terminal, pid_of, seconds_until_nothing_is_left

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def engine_python() -> None:
    """The engine's own."""


def served(tmp_path, trays: int) -> Terminal:
    """A group whose decode path is proved: the ranks on all trays have worked together."""
    names = ",".join(f"tray{number}" for number in range(trays))
    sizes = ["--set", f"nnodes={trays}", "--set", f"tensor_parallel_size={trays}"]
    terminal = Terminal(tmp_path, "serve", "-p", "cpu-tiny", "--port", "0", "--nodes", names, *sizes)
    terminal.until_said("Ctrl-C stops all nodes", 1200)
    assert "path: proved" in terminal.err(), terminal.err()
    return terminal


def caches_do_not_count(lab: Lab) -> None:
    """torch's compile cache stays where torch puts it: it is no run's."""
    for tray in lab.trays:
        for path in (tray.home / "tmp").glob("torchinductor_*"):
            path.rename(tray.home / f"{path.name}-{time.monotonic_ns()}")


def test_two_trays_serve_and_a_worker_that_is_killed_ends_both(operator, tmp_path):
    terminal = served(tmp_path, 2)
    caches_do_not_count(operator)
    os.kill(pid_of(operator.trays[1], "VLLM::Worker"), signal.SIGKILL)
    seconds_until_nothing_is_left(operator, time.monotonic())
    code, _, err = terminal.ended()
    assert (code, "error: tray1: the engine " in err, "[process-killed]" in err) == (4, True, True), err


def test_four_trays_serve_and_a_cable_that_is_pulled_ends_all(operator, tmp_path):
    terminal = served(tmp_path, 4)
    caches_do_not_count(operator)
    operator.trays[2].cut()
    seconds_until_nothing_is_left(operator, time.monotonic())
    code, _, err = terminal.ended()
    assert (code, "error: tray2: " in err) == (4, True), err
