"""Faults while serving: what the watch finds, and what the operator gets to see."""

from __future__ import annotations

import os
import shutil
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from engine_helpers import NOTHING, tiny, until

from k3ctl.engine import launch, procs, rundir
from k3ctl.errors import MachineError, UsageError
from k3ctl.profiles import loader
from k3ctl.profiles.resolve import resolve

FAST = {"stall_s": 1.0, "idle_s": 1.0, "canary_timeout_s": 1.0}


def kinds(engine: launch.RunningEngine) -> list[str]:
    return [finding["kind"] for finding in engine.run.findings]


def request(url: str) -> threading.Thread:
    def send() -> None:
        body = b'{"model": "k3-tiny", "prompt": [0], "max_tokens": 1}'
        try:
            urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", body), timeout=60)
        except (OSError, urllib.error.URLError):
            return

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def test_a_stall_is_found_with_evidence_and_its_end_too(fake_python, leftovers, monkeypatch, tmp_path):
    hung = tmp_path / "hung"
    monkeypatch.setenv("FAKE_HUNG_FILE", str(hung))
    with launch.start(tiny(), port=0, timing=FAST | {"idle_s": 600}) as engine:
        hung.touch()
        waiting = request(engine.url)
        until(lambda: "stalled" in kinds(engine))
        finding = engine.run.findings[0]
        assert finding["text"].startswith("1 requests run and nothing got done for")
        names = {Path(file).name for file in finding["files"]}
        assert "engine-tail.log" in names
        assert f"threads-{engine.run.engine_pid}.txt" in names
        assert (
            "state" in Path(finding["files"][1]).read_text() or "pid" in Path(finding["files"][1]).read_text()
        )
        assert engine.run.state == "ready", "a stall is told, not punished"
        hung.unlink()
        waiting.join(20)
        until(lambda: "resumed" in kinds(engine))
    assert leftovers() == NOTHING


def test_python_stacks_are_saved_when_py_spy_is_there(fake_python, leftovers, monkeypatch, tmp_path):
    spy = fake_python.parent / "py-spy"
    spy.write_text('#!/bin/sh\necho "Thread $4 (idle): \\"MainThread\\""\n')
    spy.chmod(0o755)
    hung = tmp_path / "hung"
    monkeypatch.setenv("FAKE_HUNG_FILE", str(hung))
    with launch.start(tiny(), port=0, timing=FAST | {"idle_s": 600}) as engine:
        hung.touch()
        request(engine.url)
        until(lambda: "stalled" in kinds(engine))
        stacks = [file for file in engine.run.findings[0]["files"] if "stacks-" in file]
        assert len(stacks) == 3, "API server, core and worker"
        assert "MainThread" in Path(stacks[0]).read_text()


def test_an_idle_engine_that_stops_answering_is_found_although_health_is_200(
    fake_python, leftovers, monkeypatch, tmp_path
):
    hung = tmp_path / "hung"
    monkeypatch.setenv("FAKE_HUNG_FILE", str(hung))
    with launch.start(tiny(), port=0, timing=FAST | {"stall_s": 600}) as engine:
        hung.touch()
        until(lambda: "not-answering" in kinds(engine))
        assert engine.client().healthy()
        hung.unlink()
        until(lambda: "answers" in kinds(engine))


def test_no_canary_disturbs_a_command_that_counts_steps(fake_python, leftovers):
    with launch.start(tiny(), port=0, timing=FAST) as engine:
        with rundir.quiet(engine.run_dir):
            before = engine.client().load().generated_tokens
            threading.Event().wait(2.5)
            assert engine.client().load().generated_tokens == before
        until(lambda: engine.client().load().generated_tokens > before)


def test_a_metrics_page_that_is_html_is_told_once_and_the_engine_stays(fake_python, leftovers, monkeypatch):
    monkeypatch.setenv("FAKE_HTML", "1")
    with launch.start(tiny(), port=0, timing=FAST) as engine:
        until(lambda: "no-metrics" in kinds(engine))
        threading.Event().wait(1.5)
        assert kinds(engine) == ["no-metrics"]
        assert engine.run.state == "ready"


def test_a_vllm_outside_the_profiles_range_is_refused_and_can_be_forced(fake_python, state_dir):
    fake_python.write_text(fake_python.read_text().replace("0.33.0", "0.99.1"))
    with pytest.raises(MachineError, match=r"needs vLLM >=0.33.0,<0.34, .* has 0.99.1"):
        launch.start(tiny(), port=0)
    assert not (state_dir / "runs").exists()
    with launch.launch(tiny(), port=0, any_version=True) as engine:
        assert engine.wait_ready().vllm == "0.99.1"


def test_a_profile_whose_model_directory_is_missing_is_refused(fake_python, state_dir, tmp_path):
    profile = tmp_path / "mine.yaml"
    text = Path(loader.files()["cpu-tiny"]).read_text()
    text = text.replace("name: cpu-tiny", "name: mine").replace("generated: tiny", "id: /nowhere/kimi-k3")
    profile.write_text(text)
    with pytest.raises(UsageError, match="`/nowhere/kimi-k3` does not exist"):
        launch.start(resolve(loader.load(str(profile))), port=0)
    assert not (state_dir / "runs").exists()


def test_a_state_directory_that_cannot_be_written_is_named(fake_python, monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("K3CTL_STATE_DIR", str(blocked))
    with pytest.raises(UsageError, match="cannot write the state directory"):
        launch.start(tiny(), port=0)


def test_an_api_key_is_used_and_never_written_down(fake_python, leftovers, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "sk-very-secret")
    with launch.start(tiny(), port=0) as engine:
        assert engine.run.state == "ready"
        for path in engine.run_dir.rglob("*"):
            assert not path.is_file() or b"sk-very-secret" not in path.read_bytes(), path


def test_a_run_directory_that_is_removed_while_serving_costs_nothing_but_the_record(fake_python, leftovers):
    with launch.start(tiny(), port=0) as engine:
        session, scratch = engine.run.session, engine.run.scratch
        shutil.rmtree(engine.run_dir)
        engine.client().canary("k3-tiny", 5)
    assert [p for p in procs.everyone() if p.session == session and p.state not in "ZX"] == []
    assert scratch and not any(Path(directory).exists() for directory in scratch)
    assert leftovers() == NOTHING


def test_a_damaged_run_file_hides_that_run_and_no_other(fake_python, leftovers):
    broken = rundir.runs_root() / "20200101-000000-broken-0000"
    broken.mkdir(parents=True)
    (broken / "run.json").write_text("{ half")
    with launch.start(tiny(), port=0) as engine:
        assert [run.id for run in rundir.all_runs()] == [engine.id]
    with pytest.raises(UsageError, match="is not JSON"):
        rundir.read(broken)


def test_a_lost_run_is_cleared_by_the_next_start(fake_python, leftovers):
    first = launch.start(tiny(), port=0)
    run = first.run
    os.kill(run.pid, 9)
    os.kill(run.supervisor_pid, 9)
    until(lambda: rundir.read(run.dir).status() == "lost")
    with launch.start(tiny(), port=0):
        assert rundir.read(run.dir).state == "failed"
    assert leftovers() == NOTHING
