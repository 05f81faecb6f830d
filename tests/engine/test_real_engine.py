"""The real vLLM dies in every way: processes, shared memory and ports are counted before and after.

What an engine survives stands in ``test_real_engine_faults.py``.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_helpers import NOTHING, Child, held, tiny, until
from real_engine import NONE, Census, load, need_engine, roles

from k3ctl.engine import launch, procs, rundir
from k3ctl.engine.client import Client
from k3ctl.engine.node import Node
from k3ctl.errors import EngineError, MachineError

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]
AT_ONCE_S = 10.0
"""For what the kernel does without anybody's help."""


@pytest.fixture(autouse=True)
def census(state_dir: Path) -> Iterator[Census]:
    """Counts nothing before; at the end of every test nothing again."""
    need_engine()
    machine = Census(state_dir)
    assert machine.counts() == NONE
    yield machine
    left = machine.processes()
    try:
        machine.empty(AT_ONCE_S)
    finally:
        for pid in left:
            procs.send(pid, signal.SIGKILL)


@pytest.fixture
def engine(census: Census) -> Iterator[launch.RunningEngine]:
    with launch.start(tiny(), port=0) as running:
        yield running


def serving(*words: str) -> tuple[Child, rundir.Run]:
    child = Child("serve", "-p", "cpu-tiny", "--port", "0", *words).said("Ctrl-C stops it", 240)
    run = rundir.latest_live()
    assert run is not None
    return child, run


@pytest.mark.parametrize("victim", ["engine", "core", "worker", "supervisor", "reaper"])
def test_kill_9_under_load_leaves_no_process_no_port_and_no_segment(victim, engine, census):
    run = engine.run
    during = census.counts()
    assert during["processes"] >= 5 and during["segments"] >= 1, (
        "vLLM makes shared memory, and it was noticed"
    )
    load(engine.url)
    os.kill(roles(run)[victim], signal.SIGKILL)
    census.empty(30)
    engine.wait()
    after = engine.run
    assert after.state in ("failed", "stopped") and after.reason
    if victim in ("engine", "core", "worker"):
        assert after.state == "failed" and "while serving" in after.reason
    assert procs.port_is_free("127.0.0.1", run.port)
    assert held() == NOTHING


def test_kill_9_of_k3ctl_under_load_takes_the_engine_with_it(census):
    child, run = serving("--no-verify")
    load(run.url)
    child.process.kill()
    child.process.wait()
    census.empty(30)
    after = rundir.read(run.dir)
    assert (after.state, after.reason) == ("stopped", "k3ctl ended")
    assert procs.port_is_free("127.0.0.1", run.port)
    assert held() == NOTHING


@pytest.mark.parametrize(
    "victims",
    [("reaper", "supervisor"), ("supervisor", "reaper", "engine")],
    ids=["reaper-and-supervisor", "and-the-api-server"],
)
def test_kill_9_of_all_who_could_stop_the_engine_ends_it_at_once(victims, engine, census):
    """Nobody is left to insist, and the engine is busy or does not run at all: the kernel ends it."""
    run, who = engine.run, roles(engine.run)
    load(engine.url)
    os.kill(who["core"], signal.SIGSTOP)
    for victim in victims:
        os.kill(who[victim], signal.SIGKILL)
    until(lambda: not any(procs.started_at(pid) for pid in who.values()), AT_ONCE_S)
    until(lambda: census.processes() == [], AT_ONCE_S)
    assert run.status() == "lost"
    assert launch.stop(run).state == "failed"
    assert procs.port_is_free("127.0.0.1", run.port)
    assert held() == NOTHING


def test_kill_9_of_reaper_and_supervisor_while_a_model_loads_ends_it_at_once(census):
    engine = launch.launch(tiny(), port=0)
    until(lambda: "worker" in roles(engine.run), 120)
    run, who = engine.run, roles(engine.run)
    until(lambda: "Resolved architecture" in run.engine_log.read_text())
    for victim in ("reaper", "supervisor"):
        os.kill(who[victim], signal.SIGKILL)
    until(lambda: not any(procs.started_at(pid) for pid in who.values()), AT_ONCE_S)
    launch.stop(run)
    assert held() == NOTHING


@pytest.mark.parametrize(
    ("signals", "code"),
    [([signal.SIGTERM], 0), ([signal.SIGINT, signal.SIGINT], 130)],
    ids=["sigterm", "double-ctrl-c"],
)
def test_stopping_the_command_under_load_leaves_nothing(signals, code, census):
    child, run = serving()
    assert "path: proved" in child.err()
    load(run.url)
    for number in signals:
        child.process.send_signal(number)
        until(lambda: rundir.read(run.dir).state != "ready")
    returned, out, err = child.ended()
    assert (returned, out) == (code, "") and "Traceback" not in err
    assert census.counts() == NONE, "the command ends after everything else"
    assert held() == NOTHING
    assert procs.port_is_free("127.0.0.1", run.port)


def test_two_nodes_on_loopback_fail_together_when_a_rank_is_killed(census):
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
    assert held() == NOTHING


def test_the_first_cause_of_a_start_that_fails_is_named(census):
    with pytest.raises(EngineError) as caught:
        launch.start(tiny(kv_cache_memory_bytes="64K"), port=0)
    assert caught.value.hint and "while starting" in caught.value.message
    assert rundir.all_runs()[0].state == "failed"
    assert held() == NOTHING


def test_a_port_that_is_taken_while_vllm_starts_is_the_first_cause(census):
    engine = launch.launch(tiny(), port=0)
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", engine.run.port))
        stranger.listen()
        with pytest.raises(EngineError) as caught:
            engine.wait_ready()
    assert "while starting" in caught.value.message
    assert any("port" in reason for reason in caught.value.reasons), caught.value.reasons
    assert held() == NOTHING


@pytest.fixture
def newer_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's Python finds the metadata of a vLLM 0.34.0 before those of the installed one."""
    import importlib.metadata

    installed = importlib.metadata.distribution("vllm")
    path = tmp_path / "newer" / "vllm-0.34.0.dist-info"
    path.mkdir(parents=True)
    for name in ("METADATA", "entry_points.txt"):
        text = installed.read_text(name) or ""
        (path / name).write_text(text.replace(f"\nVersion: {installed.version}", "\nVersion: 0.34.0"))
    monkeypatch.setenv("PYTHONPATH", f"{path.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def test_an_unknown_vllm_is_refused_and_when_forced_nothing_is_called_proved(
    newer_vllm, census, capsys, monkeypatch
):
    from k3ctl import cli

    with pytest.raises(MachineError, match=r"needs vLLM >=0.33.0,<0.34, .* has 0.34.0"):
        launch.launch(tiny(), port=0)
    assert rundir.all_runs() == []
    child, run = serving("--skip-checks")
    told = child.err()
    assert "warning: vLLM 0.34.0 is not a version that this k3ctl knows (0.33.0)" in told
    assert "path: consistent" in told and "note: rank 0: vLLM 0.34.0 is not a build the witness knows" in told
    assert "vLLM 0.34.0 is not a version it was tested with" in run.engine_log.read_text()
    client = Client(run.url)
    (page,) = client.json("/k3/witness")["workers"]
    assert (page["vllm"], page["known_build"]) == ("0.34.0", False)
    assert 'known_build="False"' in client.text("/metrics")
    assert cli.main(["verify", "--run", run.id]) == 1
    assert "proved —" not in capsys.readouterr().out
    assert cli.main(["verify", "--run", run.id, "--require", "consistent"]) == 0
    child.process.terminate()
    assert child.ended()[0] == 0
    assert held() == NOTHING
