"""``k3ctl bench`` without a preset runs the profile's own; each becomes a result, and a failure loses none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from k3ctl.commands.bench import job, parts
from k3ctl.commands.bench.job import Job
from k3ctl.engine import record
from k3ctl.errors import EngineError, ExitCode, MachineError, UsageError
from k3ctl.loadtest import workload
from k3ctl.loadtest.target import Target
from k3ctl.output import CommandResult, Lines
from k3ctl.profiles import loader

TARGET = Target("http://127.0.0.1:1", "m", "t")


def run_of(presets: tuple[str, ...] | None) -> Any:
    profile = SimpleNamespace(name="p", bench=SimpleNamespace(presets=presets))
    return None if presets is None else SimpleNamespace(profile=profile)


@pytest.mark.parametrize("name", loader.names())
def test_every_shipped_profile_names_presets_that_exist(name: str) -> None:
    assert set(loader.load(name).bench.presets) <= set(workload.names())


def test_the_presets_are_those_of_the_profile_that_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "config", lambda run: run)
    assert parts.usual(run_of(("decode", "8k1k"))) == ("decode", "8k1k")
    with pytest.raises(UsageError, match="profile `p` has none"):
        parts.usual(run_of(()))
    with pytest.raises(UsageError, match="not known with which profile"):
        parts.usual(None)


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What each of three workloads does."""
    does: dict[str, Any] = {"smoke": ExitCode.OK, "decode": ExitCode.OK, "8k1k": ExitCode.OK}

    def one(self: Job, load: workload.Workload, out: Path | None) -> CommandResult:
        done = does[load.preset]
        if isinstance(done, Exception):
            raise done
        return CommandResult(
            "k3ctl.bench/1", {"preset": load.preset, "out": out}, [Lines([load.preset])], done
        )

    monkeypatch.setattr(job.Job, "one", one)
    return does


def run_all(out: Path | None = None) -> CommandResult:
    return Job(None, TARGET).all([workload.load(name) for name in ("smoke", "decode", "8k1k")], out)


def presets(result: CommandResult) -> list[str]:
    return [bench["preset"] for bench in result.data["benches"]]


def test_every_workload_gives_a_result(three: dict[str, Any]) -> None:
    result = run_all(Path("/o"))
    assert (result.schema, result.exit_code) == ("k3ctl.benches/1", ExitCode.OK)
    assert presets(result) == ["smoke", "decode", "8k1k"]
    assert [bench["out"] for bench in result.data["benches"]] == [
        Path("/o/smoke"),
        Path("/o/decode"),
        Path("/o/8k1k"),
    ]
    assert len(result.blocks) == 3 and not result.warnings


def test_one_workload_keeps_its_own_schema(three: dict[str, Any]) -> None:
    assert Job(None, TARGET).all([workload.load("smoke")], None).schema == "k3ctl.bench/1"


@pytest.mark.parametrize(
    ("what", "code", "done", "said"),
    [
        (ExitCode.FAILED, ExitCode.FAILED, ["smoke", "decode", "8k1k"], []),
        (MachineError("no client", hint="install it"), ExitCode.MACHINE, ["smoke", "8k1k"],
         ["decode: no client (install it)"]),
        (EngineError("gone"), ExitCode.ENGINE, ["smoke"], ["decode: gone", "not run: 8k1k"]),
        (ExitCode.ENGINE, ExitCode.ENGINE, ["smoke", "decode"], ["not run: 8k1k"]),
        (ExitCode.INTERRUPTED, ExitCode.INTERRUPTED, ["smoke", "decode"], ["not run: 8k1k"]),
    ],
    ids=["invalid", "machine", "gone", "gone-at-its-end", "ctrl-c"],
)  # fmt: skip
def test_a_failure_loses_no_earlier_result(
    three: dict[str, Any], what: Any, code: ExitCode, done: list[str], said: list[str]
) -> None:
    three["decode"] = what
    result = run_all()
    assert (result.exit_code, presets(result), list(result.warnings)) == (code, done, said)
    assert result.data["failed"] == said
