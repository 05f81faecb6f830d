"""`k3ctl serve`, `ps`, `logs`, `stop` as people and scripts meet them, with the fake engine."""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest
from engine_helpers import NOTHING, ROOT, Child, until

from k3ctl import cli
from k3ctl.engine import rundir
from k3ctl.engine.client import Client
from k3ctl.errors import MachineError
from k3ctl.profiles import loader
from k3ctl.profiles.resolve import resolve


def serving(*words: str) -> tuple[Child, rundir.Run]:
    child = Child("serve", "-p", "cpu-tiny", "--port", "0", *words).said("Ctrl-C stops it")
    run = rundir.latest_live()
    assert run is not None
    return child, run


@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)], ids=["ctrl-c", "sigterm"]
)
def test_a_signal_stops_the_engine_cleanly(how, code, fake_python, leftovers):
    child, run = serving()
    child.process.send_signal(how)
    returned, out, err = child.ended()
    assert (returned, out) == (code, ""), err
    assert f"serving `k3-tiny` at {run.url}/v1" in err and err.strip().endswith("stopped")
    assert "Traceback" not in err
    assert leftovers() == NOTHING


@pytest.mark.parametrize("asked", [True, False])
def test_the_canary_is_sent_when_asked_and_a_server_without_answers_goes_on_serving(
    asked, fake_python, leftovers
):
    child, run = serving(*(["--canary"] if asked else []))
    assert Client(run.url).healthy()
    child.process.send_signal(signal.SIGTERM)
    returned, _, err = child.ended()
    assert returned == 0, err
    assert ("canary: unknown — 10 of 10 prompts were not answered" in err) == asked
    assert leftovers() == NOTHING


def test_a_second_ctrl_c_during_load_stops_a_stubborn_engine_at_once(fake_python, leftovers, monkeypatch):
    monkeypatch.setenv("FAKE_STUBBORN", "1")
    child, run = serving()
    body = {"model": "k3-tiny", "prompt": [0], "max_tokens": 1, "fake_s": 60}
    client = Client(run.url, timeout_s=60)
    load = threading.Thread(target=lambda: _ignore(client.json, "/v1/completions", body), daemon=True)
    load.start()
    until(lambda: Client(run.url).load().running == 1)
    child.process.send_signal(signal.SIGINT)
    until(lambda: rundir.read(run.dir).state == "stopping")
    child.process.send_signal(signal.SIGINT)
    returned, _, err = child.ended()
    assert returned == 130 and "Traceback" not in err
    assert rundir.read(run.dir).exit_code == -signal.SIGKILL
    assert leftovers() == NOTHING


def test_an_engine_that_dies_while_serving_is_exit_code_4_with_the_first_cause(fake_python, leftovers):
    child, run = serving()
    os.kill(run.engine_pid, signal.SIGKILL)
    returned, _, err = child.ended()
    assert returned == 4
    assert "error: the engine was killed by SIGKILL while serving" in err
    assert "Out of memory: Killed process" in err
    assert leftovers() == NOTHING


def test_detach_ps_logs_and_stop(fake_python, leftovers, capsys):
    returned, out, err = Child("serve", "-p", "cpu-tiny", "--port", "0", "--detach", "--json").ended()
    assert returned == 0, err
    data = json.loads(out)["data"]
    assert (data["state"], data["served_model_name"]) == ("ready", "k3-tiny")

    assert cli.main(["ps", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["data"]["runs"]
    assert listed["id"] == data["id"] and listed["url"] == data["url"]

    assert cli.main(["logs", "-n", "3"]) == 0
    assert capsys.readouterr().out.count("\n") == 3

    assert cli.main(["triage", "--run", data["id"]]) == 0
    assert "no incident found" in capsys.readouterr().out

    assert cli.main(["stop", data["id"][-4:]]) == 0
    assert capsys.readouterr().out == f"{data['id']}: stopped\n"
    assert leftovers() == NOTHING
    assert cli.main(["ps", "--all"]) == 0
    assert "stopped" in capsys.readouterr().out


def test_logs_follow_until_the_engine_ends(fake_python, leftovers):
    child, run = serving()
    follower = Child("logs", "-f", "-n", "1000")
    assert "version 0.33.0" in follower.process.stdout.readline()
    child.process.terminate()
    returned, _, err = follower.ended()
    assert returned == 0, err
    assert child.ended()[0] == 0
    assert rundir.read(run.dir).state == "stopped"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["serve", "-p", "cpu-tinny"], 2, "did you mean `cpu-tiny`?"),
        (["serve", "-p", "cpu-tiny", "--set", "max_num_seq=3"], 2, "max_num_seqs"),
        (["serve", "-p", "cpu-tiny", "--port", "70000"], 2, "port 70000"),
        (["serve", "-p", "cpu-tiny", "--host", "203.0.113.9"], 2, "cannot listen on `203.0.113.9`"),
        (["serve", "-p", "cpu-tiny", "--node-rank", "1"], 2, "--master-addr belong together"),
        (["serve", "-p", "cpu-tiny", "--node-rank", "1", "--master-addr", "127.0.0.1"], 2, "1 nodes"),
        (["serve", "-p", "cpu-tiny", "--set", "nnodes=2"], 2, "say which one this is"),
        (["stop"], 2, "no engine is running"),
        (["stop", "nosuch"], 2, "no run `nosuch`"),
        (["logs"], 2, "no engine is running"),
    ],
    ids=lambda value: "-".join(value)[:60] if isinstance(value, list) else "",
)
def test_bad_input_is_one_clear_line_and_starts_nothing(words, code, says, fake_python, state_dir, capsys):
    assert cli.main(words) == code
    captured = capsys.readouterr()
    assert captured.out == "" and says in captured.err and "Traceback" not in captured.err
    assert not (state_dir / "runs").exists()


def test_an_open_address_without_an_api_key_is_warned_about(fake_python, leftovers):
    child = Child("serve", "-p", "cpu-tiny", "--port", "0", "--host", "0.0.0.0", "--detach")
    assert "warning: listening on 0.0.0.0 without an API key" in child.ended()[2]
    assert cli.main(["stop", "--all"]) == 0


@pytest.mark.parametrize(
    ("visible", "refused"), [(None, True), ("0,1", True), ("2,3", False)], ids=["all", "held", "others"]
)
def test_gpus_that_another_engine_holds_are_refused_with_its_pid(visible, refused, monkeypatch):
    from dataclasses import replace

    from k3ctl.commands.serve import session
    from k3ctl.gpus import load
    from k3ctl.gpus.types import GpuProcess
    from k3ctl.machine import read
    from k3ctl.machine.record import Machine

    shot = load(ROOT / "tests" / "fixtures" / "nvml-gb300-nvl72-tray.json")
    node = shot.nodes[0]
    held = replace(node.gpus[1], processes=(GpuProcess(3117, 104277 << 20),))
    node = replace(node, gpus=(node.gpus[0], held, *node.gpus[2:]))
    held_here = Machine(node, read.read().host)
    monkeypatch.setattr(read, "read", lambda **_: held_here)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    profile = resolve(loader.load("gb300-tp16"))
    try:
        session.check(profile)
        reasons = ()
    except MachineError as error:
        reasons = error.reasons
    assert any("pid 3117" in reason and "kill 3117" in reason for reason in reasons) == refused


@pytest.mark.parametrize(
    ("profile", "specialized", "refused"),
    [("h200-rank", True, True), ("h200-rank", False, False), ("cpu-tiny", True, False)],
    ids=["asked on Hopper", "not asked", "asked of the CPU"],
)
def test_the_specialized_decode_is_refused_before_the_start_on_gpus_that_vllm_has_none_for(
    profile, specialized, refused, monkeypatch, tmp_path
):
    from k3ctl.commands.serve import session
    from k3ctl.gpus import load
    from k3ctl.machine import read
    from k3ctl.machine.record import Machine

    file = tmp_path / "h200-rank.yaml"
    file.write_text(
        "{schema: 1, name: h200-rank, summary: one rank, status: untested, "
        "requires: {gpu: [H200], gpus: 2}, model: {id: /models/k3}}"
    )
    shot = load(ROOT / "tests" / "fixtures" / "nvml-h200-x2-vm.json")
    here = Machine(shot.nodes[0], read.read().host)
    monkeypatch.setattr(read, "read", lambda **_: here)
    backend = "latency_specialized" if specialized else "auto"
    wanted = resolve(
        loader.load(str(file) if profile == "h200-rank" else profile),
        {"additional_config.decode_backend": backend},
    )
    try:
        session.check(wanted)
        message = ""
    except MachineError as error:
        message = f"{error.message} {error.reasons} {error.hint}"
    assert ("compute capability 9.0" in message and "decode_backend=auto" in message) == refused, message
    assert bool(message) == refused, message


def _ignore(call, *args) -> None:
    try:
        call(*args)
    except Exception:
        return
