"""aiperf's own files, recorded from version 0.13.0, and its command line; ``test_aiperf_engine`` runs it."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from k3ctl.errors import MachineError, UsageError
from k3ctl.loadtest import aiperf, clients, guards, rows, workload
from k3ctl.loadtest.guards import GuardEvidence
from tests.loadtest.results import FIXTURES, K3_TARGET

RESULT = json.loads((FIXTURES / "aiperf-result-0.13.0.json").read_text())
RECORDS = FIXTURES / "aiperf-profile_export-0.13.0.jsonl"


def test_a_recorded_result_reads_completely() -> None:
    row = aiperf.row(RESULT, sessions=2)
    assert (row.concurrency, row.completed, row.errored) == (2, 171, 0)
    assert row.output_tok_s == pytest.approx(82.52, abs=0.01)
    assert row.ttft_ms.mean == pytest.approx(45.52, abs=0.01)
    assert row.itl_ms.p90 == pytest.approx(3.327, abs=0.001)
    assert row.latency_s.mean == pytest.approx(0.07895, abs=1e-5)
    assert row.window_s == pytest.approx(24.52, abs=0.01)


def test_a_run_with_the_safety_off_may_not_be_called_agentx() -> None:
    assert (
        "not a valid AgentX submission: unsafe_override" in aiperf.row(RESULT, sessions=2).client_warnings[0]
    )


def test_outputs_that_stopped_by_themselves_are_not_that_workload(fixture_json: Any) -> None:
    row = aiperf.row(fixture_json("aiperf-osl-mismatch.json"), sessions=1)
    load = workload.override(workload.load("8k1k"))
    found = guards.judge(GuardEvidence(row, load, K3_TARGET.deployment, None, None))
    assert any("mean output 300 tokens, asked 1000" in finding.text for finding in found)


def test_something_else_is_no_result() -> None:
    with pytest.raises(UsageError, match="request_count"):
        aiperf.row({"x": 1}, sessions=1)


def test_warm_up_records_are_left_out() -> None:
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    events = [aiperf.request_event(record) for record in records]
    assert events[:2] == [None, None]
    assert all(event is not None and event["status"] == "completed" for event in events[2:])


def test_the_live_tail_gives_the_events_of_any_client(tmp_path: Path) -> None:
    tail = aiperf.Tail(tmp_path, 2)
    assert [event["kind"] for event in tail()] == ["client", "bench_start"]
    shutil.copy(RECORDS, tmp_path / aiperf.RECORDS)
    events = list(tail())
    assert events[-1]["kind"] == "tick"
    assert events[-1]["ok"] == len(events) - 1
    assert events[-1]["itl_ms"] > 0
    assert list(tail()) == []


def test_records_alone_make_a_partial_row(tmp_path: Path) -> None:
    shutil.copy(RECORDS, tmp_path / aiperf.RECORDS)
    (row,) = rows.from_events(list(aiperf.Tail(tmp_path, 2)()))
    assert row.partial and row.concurrency == 2
    assert row.completed == len(RECORDS.read_text().splitlines()) - 2


def test_the_command_line_uses_only_options_of_the_recorded_run() -> None:
    """The recorded run's own command line is in its result."""
    load = workload.load("agentic")
    argv = aiperf.argv(load, K3_TARGET, traces="weka", output="out", concurrency=4)
    recorded = RESULT["run_info"]["cli_command"]
    new = {"--tokenizer-trust-remote-code", "--extra-inputs"}
    assert {part for part in argv if part.startswith("--") and part not in recorded} == new
    assert argv[argv.index("--concurrency") + 1] == "4"
    assert argv[argv.index("--benchmark-duration") + 1] == "900"


def test_every_request_carries_the_presets_sampling_and_the_length_that_was_asked_for() -> None:
    load = workload.load("agentic")
    argv = aiperf.argv(load, K3_TARGET, traces="weka", output="out", concurrency=4)
    sent = json.loads(argv[argv.index("--extra-inputs") + 1])
    assert sent == {"ignore_eos": True, **load.body}
    assert load.body["temperature"] == 1.0


def test_the_window_of_a_replay_is_that_of_its_own_records(tmp_path: Path) -> None:
    """Without it the server's counters of every rung were taken for each."""
    shutil.copy(RECORDS, tmp_path / aiperf.RECORDS)
    events = list(aiperf.Tail(tmp_path, 2)())
    start, end = aiperf.window(events) or (0.0, 0.0)
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    measured = [r["metadata"] for r in records if r["metadata"].get("benchmark_phase") != "warmup"]
    assert start == pytest.approx(min(m["request_start_ns"] for m in measured) / 1e9)
    assert end == pytest.approx(max(m["request_end_ns"] for m in measured) / 1e9)
    assert aiperf.window([]) is None


def fake(directory: Path, output: str) -> Path:
    path = directory / "aiperf"
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_an_old_aiperf_is_refused(tmp_path: Path) -> None:
    assert aiperf.version(str(fake(tmp_path, "aiperf 0.13.1"))) == "0.13.1"
    with pytest.raises(MachineError, match=r"is version 0\.12\.4"):
        aiperf.version(str(fake(tmp_path, "0.12.4")))


def test_a_missing_aiperf_says_where_it_goes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("K3CTL_AIPERF", raising=False)
    with pytest.raises(MachineError) as caught:
        clients.version("aiperf")
    assert "K3CTL_AIPERF" in (caught.value.hint or "")
