"""The fault list against the real vLLM: every way to die, with processes, ports and shared memory counted."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_helpers import NOTHING, Child, tiny, until

from k3ctl.engine import launch, procs, rundir
from k3ctl.engine.client import Client
from k3ctl.engine.command import Node
from k3ctl.engine.rundir import Run
from k3ctl.engine.stages import Stage
from k3ctl.errors import EngineError, K3Error

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def engine_is_installed(state_dir) -> None:
    from k3ctl.engine import preflight

    try:
        preflight.interpreter()
    except K3Error as error:
        pytest.skip(f"no engine here: {error.message}")


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


def load(url: str, requests: int = 8) -> list[threading.Thread]:
    """Requests that run for a while."""

    def send() -> None:
        body = {"model": "k3-tiny", "prompt": list(range(2, 40)), "max_tokens": 900, "ignore_eos": True}
        try:
            Client(url, timeout_s=120).json("/v1/completions", body)
        except EngineError:
            return

    threads = [threading.Thread(target=send, daemon=True) for _ in range(requests)]
    for thread in threads:
        thread.start()
    until(lambda: Client(url).load().running >= requests / 2, 60)
    return threads


@pytest.fixture
def engine(leftovers: Callable[[], dict[str, list[str]]]) -> Iterator[launch.RunningEngine]:
    with launch.start(tiny(), port=0) as running:
        yield running


def test_a_start_is_told_stage_by_stage_fits_its_memory_and_leaves_nothing(leftovers):
    stages: list[Stage] = []
    with launch.start(tiny(), port=0, on_stage=stages.append) as engine:
        run = engine.run
        assert [stage.name for stage in stages] == [
            *("import", "configure", "engine", "weights", "cache", "warm", "listen", "ready")
        ]
        members = [p.pid for p in procs.everyone() if p.session == run.session]
        assert sum(pss_kib(pid) for pid in members) < 2.5 * 1024 * 1024
        load(engine.url)
    assert engine.run.state == "stopped"
    assert procs.port_is_free("127.0.0.1", run.port)
    assert leftovers() == NOTHING


@pytest.mark.parametrize("victim", ["engine", "core", "worker", "supervisor", "reaper"])
def test_kill_9_under_load_leaves_no_process_no_port_and_no_segment(victim, engine, leftovers):
    run = engine.run
    assert leftovers()["segments"], "vLLM makes shared memory, and it was noticed"
    load(engine.url)
    os.kill(roles(run)[victim], signal.SIGKILL)
    until(lambda: leftovers() == NOTHING, 60)
    engine.wait()
    after = engine.run
    assert after.state in ("failed", "stopped") and after.reason
    if victim in ("engine", "core", "worker"):
        assert after.state == "failed" and "while serving" in after.reason
    assert procs.port_is_free("127.0.0.1", run.port)


def test_kill_9_of_reaper_and_supervisor_together_lets_vllm_end_itself(engine, leftovers):
    run = engine.run
    load(engine.url)
    os.kill(run.pid, signal.SIGKILL)
    os.kill(run.supervisor_pid, signal.SIGKILL)
    until(lambda: leftovers()["processes"] == [], 60)
    launch.stop(run)
    assert leftovers() == NOTHING


@pytest.mark.parametrize(
    ("signals", "code"),
    [([signal.SIGTERM], 0), ([signal.SIGINT, signal.SIGINT], 130)],
    ids=["sigterm", "double-ctrl-c"],
)
def test_stopping_the_command_under_load_leaves_nothing(signals, code, leftovers):
    child = Child("serve", "-p", "cpu-tiny", "--port", "0").said("Ctrl-C stops it", 240)
    run = rundir.latest_live()
    assert run is not None
    assert "path: " in child.err()
    load(run.url)
    for number in signals:
        child.process.send_signal(number)
        until(lambda: rundir.read(run.dir).state != "ready")
    returned, out, err = child.ended()
    assert (returned, out) == (code, "") and "Traceback" not in err
    assert leftovers() == NOTHING
    assert procs.port_is_free("127.0.0.1", run.port)


def test_two_nodes_on_loopback_fail_together_when_a_rank_is_killed(leftovers):
    resolved = tiny(nnodes="2", tensor_parallel_size="2")
    master = procs.free_port("127.0.0.1")
    first = launch.launch(resolved, port=0, node=Node(0, "127.0.0.1", master))
    second = launch.launch(resolved, port=0, node=Node(1, "127.0.0.1", master))
    with first, second:
        first.wait_ready()
        second.wait_ready()
        first.client(60).canary("k3-tiny", 60)
        os.kill(roles(second.run)["worker"], signal.SIGKILL)
        assert second.wait(15)
        assert first.wait(15)
    assert first.run.reason.startswith("node 1 failed: the engine")
    assert [e.run.state for e in (first, second)] == ["failed", "failed"]
    assert leftovers() == NOTHING


def test_the_first_cause_of_a_start_that_fails_is_named(leftovers):
    with pytest.raises(EngineError) as caught:
        launch.start(tiny(kv_cache_memory_bytes="64K"), port=0)
    assert caught.value.hint and "while starting" in caught.value.message
    run = rundir.all_runs()[0]
    assert run.state == "failed"
    assert leftovers() == NOTHING


def pss_kib(pid: int) -> int:
    """Memory of a process with shared pages counted once over all that share them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
