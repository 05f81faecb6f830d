"""What a newcomer meets: `k3ctl` alone, `serve` without a profile, the help, what TAB offers."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from k3ctl import cli, commands, completion
from k3ctl.commands.serve import session
from k3ctl.engine import preflight, rundir
from k3ctl.engine.rundir import Run
from k3ctl.errors import MachineError, UsageError
from k3ctl.gpus.types import NvmlSystem, Refused
from k3ctl.planning import advice, choice, detect
from k3ctl.planning.advice import Situation
from k3ctl.planning.selection import Selection, select
from k3ctl.profiles import loader
from tests.in_process import k3ctl

RUN = Run(
    id="20261130-081720-cpu-tiny-fc5b", profile="cpu-tiny", host="127.0.0.1", port=8000, url="http://127.0.0.1:8000",
    served_model_name="k3-tiny", tokenizer="t", argv=(), env={}, started_at=1.0,
)  # fmt: skip
NO_ENGINE = "vllm is not installed for `python`"


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("K3CTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("K3CTL_PROFILES", raising=False)
    return tmp_path / "state"


def plan_for(hardware: str) -> Selection:
    found = detect.given([hardware]) if hardware else detect.none("this host")
    return select(loader.load_all(), found)


def command(**now: Any) -> str:
    return advice.advise(Situation(**now)).command


@pytest.mark.parametrize(
    ("now", "wanted"),
    [
        ({"live": replace(RUN, state="ready")}, "k3ctl bench"),
        ({"live": replace(RUN, state="starting")}, f"k3ctl logs --follow {RUN.id}"),
        ({"live": replace(RUN, state="stopping")}, f"k3ctl logs --follow {RUN.id}"),
        ({"last": replace(RUN, state="failed", reason="out of memory")}, f"k3ctl triage --run {RUN.id}"),
        (
            {"last": replace(RUN, state="ready")},
            f"k3ctl triage --run {RUN.id}",
        ),  # its processes are gone: lost
        ({"last": replace(RUN, state="stopped"), "hardware": ""}, "k3ctl demo"),
        ({"unread": "host: NVML said DriverNotLoaded"}, "k3ctl doctor"),
        ({"hardware": ""}, "k3ctl demo"),
        ({"hardware": "GB300:16"}, "k3ctl serve"),
        ({"hardware": "B300:8"}, "k3ctl serve"),
        ({"hardware": "H200:1"}, "k3ctl plan"),
        ({"hardware": "", "no_engine": NO_ENGINE}, "make setup"),
        ({"hardware": "B300:8", "no_engine": NO_ENGINE}, "make setup-gpu"),
    ],
)
def test_the_next_command_fits_the_machine(now: dict[str, Any], wanted: str) -> None:
    if "hardware" in now:
        now = {**now, "selection": plan_for(now["hardware"])}
        now.pop("hardware")
    assert command(**now) == wanted


@pytest.mark.parametrize("state", ["ready", "starting"])
def test_a_run_that_goes_comes_before_one_that_failed_and_that_before_the_machine(state: str) -> None:
    failed = replace(RUN, id="20261130-090000-x-0000", state="failed")
    both = Situation(replace(RUN, state=state), failed, NO_ENGINE, plan_for("B300:8"))
    assert advice.advise(both) == advice.advise(replace(both, last=None, no_engine="", selection=None))
    alone = replace(both, live=None)
    assert advice.advise(alone).command == f"k3ctl triage --run {failed.id}"


def test_away_from_a_checkout_the_way_to_an_engine_is_pips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "in_checkout", lambda: False)
    gpu, cpu = plan_for("B300:8"), plan_for("")
    assert command(selection=gpu, no_engine=NO_ENGINE) == "pip install 'k3ctl[gpu,bench]'"
    said = advice.advise(Situation(selection=cpu, no_engine=NO_ENGINE))
    assert said.command == "k3ctl doctor" and "make setup" in said.why
    assert "make" not in preflight.how_to_get_an_engine().split("`")[1]


def test_every_command_that_is_advised_exists() -> None:
    import typer

    known = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    situations = [
        Situation(live=replace(RUN, state="ready")), Situation(live=replace(RUN, state="starting")),
        Situation(last=replace(RUN, state="failed")), Situation(unread="x"),
        *(Situation(no_engine=why, selection=plan_for(gpus))
          for why in ("", NO_ENGINE) for gpus in ("", "B300:8", "H200:1")),
    ]  # fmt: skip
    for now in situations:
        said = advice.advise(now)
        for text in (said.command, *(also for also, _ in said.also)):
            program, verb, *options = shlex.split(text)
            if program != "k3ctl":
                continue
            assert verb in known, text
            taken = {word for option in known[verb].params for word in option.opts}
            assert {word for word in options if word.startswith("--")} <= taken, text


@pytest.mark.parametrize("words", [(), ("next",)], ids=["alone", "next"])
def test_k3ctl_alone_says_what_is_next_and_exits_0(words: tuple[str, ...], own_state: Path) -> None:
    done = k3ctl(*words)
    assert done.returncode == 0
    assert re.search(r"^next:  \S", done.stdout, re.M)
    assert "error" not in done.stderr
    run = own_state / "runs" / "20261130-100000-broken-0000"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{")
    done = k3ctl(*words)
    assert done.returncode == 0 and "run.json" in done.stderr  # a damaged record is told, and changes nothing
    failed = rundir.create(replace(RUN, state="failed", reason="CUDA out of memory"))
    told = json.loads(k3ctl("next", "--json").stdout)["data"]
    assert told["command"] == f"k3ctl triage --run {failed.id}"
    assert "CUDA out of memory" in told["why"]


def test_unknown_gpus_are_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that does not answer: neither `k3ctl` nor `serve` may go on as on a machine without GPUs."""
    real = detect.this_host()
    assert real.machines is not None
    (machine,) = real.machines.machines
    for error, certain in ((Refused("DriverNotLoaded", 9), False), (Refused("LibraryNotFound", 12), True)):
        node = replace(machine.node, gpus=(), nvml=NvmlSystem(error=error))
        read = replace(real, machines=replace(real.machines, machines=(replace(machine, node=node),)))
        monkeypatch.setattr(detect, "this_host", lambda read=read: read)
        if certain:
            assert choice.chosen(choice.for_this_host()).profile.name == "cpu-tiny"
        else:
            with pytest.raises(MachineError, match="cannot be read") as refused:
                session.choose()
            assert "DriverNotLoaded" in refused.value.reasons[0]
            assert advice.advise(advice.look()).command == "k3ctl doctor"


def test_serve_takes_what_plan_chooses_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for hardware in ("B300:8", "GB300:16", ""):
        selection = plan_for(hardware)
        monkeypatch.setattr(choice, "for_this_host", lambda selection=selection: selection)
        name, overrides = session.choose()
        assert selection.chosen is not None
        assert (name, overrides) == (selection.chosen.profile.name, dict(selection.chosen.overrides))
        assert f"profile: `{selection.chosen.command}`" in capsys.readouterr().err
    with pytest.raises(UsageError, match="several hosts"):
        session.choose(several=True)


def test_serve_refuses_with_every_reason_where_plan_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    selection = plan_for("H200:1")
    monkeypatch.setattr(choice, "for_this_host", lambda: selection)
    done = k3ctl("serve")
    assert done.returncode == 3
    assert "Kimi K3 does not fit" in done.stderr
    assert {other.profile.name for other in selection.others} <= set(re.findall(r"- ([\w-]+):", done.stderr))
    assert done.stdout == ""


def test_serve_without_a_profile_resolves_the_chosen_one_with_what_was_typed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from k3ctl.engine import launch

    seen: list[Any] = []

    def started(resolved: Any, **_: Any) -> Any:
        seen.append(resolved)
        raise MachineError("far enough")

    monkeypatch.setattr(launch, "launch", started)
    monkeypatch.setattr(session, "check", lambda *_: (None, []))
    done = k3ctl("serve", "--set", "max_num_seqs=3")
    assert "far enough" in done.stderr and "profile: `cpu-tiny`" in done.stderr
    assert (seen[0].profile.name, seen[0].get("max_num_seqs")) == ("cpu-tiny", 3)


def test_the_help_groups_every_command_once_and_cuts_no_sentence() -> None:
    text = k3ctl("--help").stdout
    import typer

    known = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    shown = {name for name, one in known.items() if not one.hidden}
    grouped = [name for names in commands.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(shown)
    assert "More:" not in text and "..." not in text.partition("First steps")[2]
    for title in commands.GROUPS:
        assert f"{title}:" in text
    for line in re.findall(r"^    (k3ctl .*?)  ", text, re.M):
        word = shlex.split(line)[1:2]
        assert not word or word[0] in shown or word[0].startswith("--"), line


def complete(shell: str, line: str) -> list[str]:
    words = line.split(" ")
    environ = {
        "_K3CTL_COMPLETE": f"complete_{shell}", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "k3ctl"], env={**os.environ, **environ}, capture_output=True, text=True, timeout=60
    )  # fmt: skip
    assert done.stderr == ""
    return re.findall(r"[\w.-]+", done.stdout)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_is_offered_profiles_presets_and_runs(shell: str) -> None:
    run = rundir.create(replace(RUN, state="failed"))
    assert {"gb300-tp16", "gb300-tp8"} <= set(complete(shell, "k3ctl serve --profile gb300"))
    if shell != "bash":  # what is offered is the same; how it is asked for is not
        return
    assert "8k1k" in complete(shell, "k3ctl bench 8k")
    assert run.id in complete(shell, "k3ctl logs 2026")
    assert run.id in complete(shell, "k3ctl triage --run 2026")


def test_names_are_offered_by_their_beginning_and_a_failure_offers_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert set(completion.profiles("")) == set(loader.names())
    assert completion.profiles("zzz") == []
    assert "judge" in completion.presets("ju")
    live, ended = (SimpleNamespace(id=name, live=lambda name=name: name == "a1") for name in ("a1", "a2"))
    monkeypatch.setattr(rundir, "all_runs", lambda: [live, ended])
    assert (completion.runs("a"), completion.live_runs("a"), completion.ended_runs("a")) == (
        ["a1", "a2"], ["a1"], ["a2"],
    )  # fmt: skip
    monkeypatch.setattr(rundir, "all_runs", lambda: 1 / 0)
    assert completion.runs("a") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_by_the_librarys_own_option(shell: str, tmp_path: Path) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", "import sys; from k3ctl.cli import main; sys.exit(main())", "--show-completion", shell],
        env={**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert shown.returncode == 0 and "_K3CTL_COMPLETE" in shown.stdout
