"""A client that hangs beside an idle server is stopped; what finished before it is kept, and each rate is a process."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from k3ctl.errors import ExitCode
from k3ctl.loadtest import clients, driver, workload
from k3ctl.loadtest.clients import ClientRun
from k3ctl.loadtest.target import Target
from k3ctl.loadtest.workload import Workload
from k3ctl.server.client import Client
from tests.loadtest import mock_server
from tests.loadtest.results import FIXTURES, K3_TARGET


def run_of(code: str, streams: int) -> ClientRun:
    return ClientRun("guidellm", (sys.executable, "-c", code), ("guidellm",), f"guidellm-{streams}.json")


def test_every_rate_is_a_process_with_a_report_of_its_own() -> None:
    load = workload.load("8k1k")
    _, runs = clients.plan(load, K3_TARGET, Path(), Client("http://127.0.0.1:9"), "guidellm")
    assert [run.report for run in runs] == ["guidellm-1.json", "guidellm-4.json", "guidellm-16.json"]
    streams = [run.argv[run.argv.index("profile.streams") + 1] for run in runs]
    assert streams == ["1", "4", "16"]


def test_a_hung_client_is_stopped_and_the_finished_rates_stay(
    mock: mock_server.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = FIXTURES / "guidellm-8k1k-consistent-c4.json"
    finished = run_of(f"import shutil; shutil.copy({str(report)!r}, 'guidellm-4.json')", 4)
    hung = run_of("import time; time.sleep(300)", 16)

    def plan(load: Workload, *_: object) -> tuple[Workload, list[ClientRun]]:
        return workload.override(load, concurrency=(4, 16)), [finished, hung]

    monkeypatch.setattr(clients, "plan", plan)
    monkeypatch.setenv(driver.STALL_ENV, "2")
    to = Target(mock.url, "k3-tiny", "unused")
    began = time.monotonic()
    result = driver.run(workload.load("8k1k"), to, out=tmp_path / "out")
    assert time.monotonic() - began < 60
    assert [row["concurrency"] for row in result.rows] == [4]
    assert result.summary["missing_steps"] == [16]
    assert ["guidellm-16.json" in text and "no progress" in text for text in result.summary["stalled"]] == [
        True
    ]
    assert result.exit_code == ExitCode.FAILED
