"""A start, a stop, and what is left: with the fake engine behind the real launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from engine_helpers import NOTHING, pids, tiny, until

from k3ctl.engine import launch, procs, rundir
from k3ctl.errors import EngineError, K3Error, MachineError, UsageError


def test_a_started_engine_is_ready_and_stops_without_a_trace(fake_python, leftovers):
    stages = []
    with launch.start(tiny(), port=0, on_stage=stages.append) as engine:
        run = engine.run
        assert run.state == "ready" and run.live() and run.ready_at is not None
        assert rundir.latest_live() == run == rundir.find(engine.url) == rundir.find(run.id[:-1])
        assert engine.client().load().running == 0
        assert {p.pid for p in procs.everyone() if p.session == run.session} >= {run.pid, run.engine_pid}
        assert "fake" in run.engine_log.read_text()
    assert {"configure", "weights", "listen"} <= {stage.name for stage in stages}
    assert stages[-1].name == "ready"
    assert engine.run.state == "stopped" and engine.run.exit_code == 0
    assert leftovers() == NOTHING
    assert rundir.latest_live() is None


def test_an_engine_that_dies_while_starting_is_reported_and_leaves_nothing(
    fake_python, leftovers, monkeypatch
):
    monkeypatch.setenv("FAKE_DIE", "start")
    with pytest.raises(EngineError, match="ended with status 1 while starting") as caught:
        launch.start(tiny(), port=0)
    assert "no memory is left for the cache [no-cache-memory]" in caught.value.reasons
    assert "gpu_memory_utilization" in caught.value.hint
    assert rundir.all_runs()[0].state == "failed"
    assert leftovers() == NOTHING


def test_an_engine_that_ignores_sigterm_is_killed_after_the_second_request(
    fake_python, leftovers, monkeypatch
):
    monkeypatch.setenv("FAKE_STUBBORN", "1")
    monkeypatch.setenv("FAKE_SHM", f"k3test-{os.getpid()}")
    engine = launch.start(tiny(), port=0)
    engine.stop_now()
    until(lambda: engine.run.state == "stopping")
    engine.stop_now()
    engine.stop()
    assert engine.run.state == "stopped" and engine.run.exit_code == -signal.SIGKILL
    assert leftovers() == NOTHING


@pytest.mark.parametrize("victim", ["engine", "core", "worker", "supervisor", "reaper"])
def test_kill_9_of_one_process_takes_the_whole_run_away(victim, fake_python, leftovers, monkeypatch):
    monkeypatch.setenv("FAKE_SHM", f"k3test-{os.getpid()}")
    engine = launch.start(tiny(), port=0)
    assert leftovers()["segments"] == [f"k3test-{os.getpid()}"]
    os.kill(pids(engine.run)[victim], signal.SIGKILL)
    until(lambda: leftovers() == NOTHING)
    engine.wait()
    run = engine.run
    assert run.state in ("failed", "stopped") and run.reason
    if victim in ("engine", "core", "worker"):
        assert run.state == "failed" and "while serving" in run.reason
    if victim == "supervisor":
        assert run.reason == "the supervisor was killed by SIGKILL"
    if victim == "reaper":
        assert (run.state, run.reason) == ("failed", "its reaper was killed")


def test_kill_9_of_reaper_and_supervisor_together_ends_the_server_and_stop_takes_the_rest(
    fake_python, leftovers
):
    engine = launch.start(tiny(), port=0)
    run = engine.run
    os.kill(run.pid, signal.SIGKILL)
    os.kill(run.supervisor_pid, signal.SIGKILL)
    until(lambda: procs.started_at(run.engine_pid) is None)
    assert run.status() == "lost"
    assert launch.stop(run).state == "failed"
    assert leftovers() == NOTHING


SERVE_AND_WAIT = """
import sys, time
from k3ctl.engine import launch
from k3ctl.profiles import loader
from k3ctl.profiles.resolve import resolve
engine = launch.start(resolve(loader.load("cpu-tiny"), {}), port=0)
print(engine.id, flush=True)
if "detach" in sys.argv: engine.detach()
else: time.sleep(600)
"""


def front_end(*args: str) -> subprocess.Popen[str]:
    root = Path(launch.__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.Popen(
        [sys.executable, "-c", SERVE_AND_WAIT, *args], stdout=subprocess.PIPE, text=True, env=env
    )


def test_kill_9_of_k3ctl_ends_the_engine(fake_python, leftovers, monkeypatch):
    monkeypatch.setenv("FAKE_SHM", f"k3test-{os.getpid()}")
    with front_end() as child:
        run = rundir.find(child.stdout.readline().strip())
        assert run.live()
        child.kill()
    until(lambda: leftovers() == NOTHING)
    run = rundir.read(run.dir)
    assert (run.state, run.reason) == ("stopped", "k3ctl ended")


def test_a_detached_engine_outlives_k3ctl_and_is_stopped_from_elsewhere(fake_python, leftovers):
    with front_end("detach") as child:
        run = rundir.find(child.stdout.readline().strip())
        assert child.wait(20) == 0
    assert rundir.latest_live() == run
    assert launch.stop(run).state == "stopped"
    assert leftovers() == NOTHING


def test_a_second_engine_on_the_same_port_is_refused_and_told_who_holds_it(fake_python, leftovers):
    with launch.start(tiny(), port=0) as engine:
        with pytest.raises(
            MachineError, match=f"taken by run `{engine.id}`.*pid {engine.run.engine_pid}"
        ) as caught:
            launch.start(tiny(), port=engine.run.port)
        assert f"k3ctl stop {engine.id}" in caught.value.hint
        assert len(rundir.all_runs()) == 1
    assert leftovers() == NOTHING


def test_a_port_taken_by_a_stranger_names_the_pid(fake_python, state_dir):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(MachineError, match=f"pid {os.getpid()}"):
            launch.start(tiny(), port=taken.getsockname()[1])
    assert rundir.all_runs() == []


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (
            '{"python":[3,11,7],"vllm":null,"torch":null,"runtime":true,"plugins":[]}',
            MachineError,
            "vllm is not inst",
        ),
        (
            '{"python":[3,11,7],"vllm":"0.33.0","torch":null,"runtime":true,"plugins":[]}',
            MachineError,
            "torch is not installed",
        ),
        (
            '{"python":[3,9,1],"vllm":"0.33.0","torch":"2","runtime":true,"plugins":[]}',
            MachineError,
            "Python 3.11",
        ),
        (
            '{"python":[3,11,7],"vllm":"0.33.0","torch":"2","runtime":false,"plugins":[]}',
            MachineError,
            "`runtime`",
        ),
        ("Segmentation fault", UsageError, "does not work as a Python"),
    ],
    ids=["no-vllm", "interrupted-install", "old-python", "no-runtime", "broken-interpreter"],
)
def test_an_unusable_interpreter_is_refused_before_anything_exists(
    answer, error, says, tmp_path, state_dir, monkeypatch
):
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\necho '{answer}'\n")
    script.chmod(0o755)
    monkeypatch.setenv("K3CTL_ENGINE_PYTHON", str(script))
    with pytest.raises(error, match=says) as caught:
        launch.start(tiny(), port=0)
    assert isinstance(caught.value, K3Error)
    assert not (state_dir / "runs").exists()


def test_a_disk_that_is_full_costs_log_lines_but_not_the_engine(
    fake_python, leftovers, monkeypatch, tmp_path
):
    """RLIMIT_FSIZE makes every write beyond the limit fail, as a full disk does."""
    import resource

    monkeypatch.setenv("FAKE_LOG_MB", "3")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with launch.start(tiny(), port=0) as engine:
            until(lambda: engine.run.engine_log.stat().st_size >= 1 << 20)
            engine.client().canary("k3-tiny", 5)
            assert engine.run.live()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, previous)
    assert engine.run.state == "stopped"
    assert leftovers() == NOTHING
