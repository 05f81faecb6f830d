"""Directories of ended runs go in time; what explains a failure stays until someone asks."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from engine_helpers import NOTHING, recorded, tiny

from k3ctl import cli
from k3ctl.engine import launch, procs, prune
from k3ctl.engine.rundir import Run


def ended(days_ago: float, state: str = "stopped", **changes: object) -> Run:
    at = time.time() - days_ago * 86400
    run = recorded(started_at=at, ended_at=at, state=state, **changes)
    (run.dir / "engine.log").write_text("x" * 1000)
    return run


@pytest.fixture
def history(state_dir: Path) -> dict[str, Run]:
    mine = {"pid": os.getpid(), "pid_started": procs.started_at(os.getpid()), "boot_id": procs.boot_id()}
    return {
        "serving": ended(9, "ready", **mine),
        "new": ended(1),
        "old": ended(40),
        "older": ended(50),
        "failed": ended(60, "failed", reason="the engine was killed by SIGKILL"),
        "stalled": ended(70, findings=({"at": 1.0, "kind": "stalled", "text": "", "files": []},)),
    }


def left(history: dict[str, Run]) -> set[str]:
    return {name for name, run in history.items() if run.dir.exists()}


@pytest.mark.parametrize(
    ("words", "removed"),
    [
        ([], set()),
        (["--keep", "1"], {"old", "older"}),
        (["--keep", "0"], {"new", "old", "older"}),
        (["--keep", "0", "--older-than", "45"], {"older"}),
        (["--keep", "0", "--older-than", "45", "--failed"], {"older", "failed", "stalled"}),
        (["--failed", "--keep", "3"], {"failed", "stalled"}),
    ],
    ids=["default", "keep", "keep-none", "age", "age-and-failed", "failed"],
)
def test_rules_choose_what_goes(words, removed, history, capsys):
    assert cli.main(["prune", *words, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["data"]
    assert {run["id"] for run in told["runs"]} == {history[name].id for name in removed}
    assert all(run["size_bytes"] > 1000 for run in told["runs"])
    assert left(history) == set(history), "a dry run removes nothing"
    assert cli.main(["prune", *words]) == 0
    assert left(history) == set(history) - removed


def test_a_failed_run_goes_by_its_name_and_a_live_one_does_not(history, capsys):
    assert cli.main(["prune", history["failed"].id]) == 0
    assert left(history) == set(history) - {"failed"}
    assert cli.main(["prune", history["serving"].id]) == 2
    assert "has not ended" in capsys.readouterr().err
    assert "serving" in left(history)


def test_run_ids_and_rules_exclude_each_other(history, capsys):
    assert cli.main(["prune", history["old"].id, "--keep", "1"]) == 2
    assert left(history) == set(history)


def test_a_start_keeps_the_20_newest_orderly_runs_and_every_failed_one(fake_python, leftovers):
    orderly = [ended(days) for days in range(1, prune.KEEP + 6)]
    failed = [ended(days, "failed") for days in range(100, 105)]
    with launch.start(tiny(), port=0):
        assert [run.dir.exists() for run in orderly] == [True] * prune.KEEP + [False] * 5
        assert all(run.dir.exists() for run in failed)
    assert leftovers() == NOTHING
