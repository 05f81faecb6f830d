from __future__ import annotations

import json
from pathlib import Path

import pytest

from k3ctl.loadtest import events, live, rows
from k3ctl.loadtest.live import LiveState
from tests.loadtest.results import FIXTURES

EVENTS = events.read(FIXTURES / "guidellm-events-0.8.1.jsonl")


def test_the_live_line_follows_a_recorded_run() -> None:
    state = LiveState(steps=2, duration_s=8.0)
    assert state.line() == "client starts"
    lines = []
    for event in EVENTS:
        state = live.on_event(state, event)
        lines.append(state.line())
    assert any(line.startswith("step 1/2 c=1 active") and "TTFT" in line and "ITL" in line for line in lines)
    assert any(line.startswith("step 2/2 c=4") for line in lines)
    assert state.phase == "finished"


def test_the_eta_counts_the_steps_that_are_still_to_come() -> None:
    state = LiveState(steps=3, duration_s=100.0, step=1, remaining=0.25)
    assert state.eta_s() == 225.0
    assert LiveState(steps=1, duration_s=None, step=1, remaining=0.5).eta_s() is None


def test_a_tail_gives_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = events.Tail(path)
    assert list(tail()) == []
    path.write_text('{"kind":"a"}\n{"kind":"b"')
    assert [event["kind"] for event in tail()] == ["a"]
    with path.open("a") as file:
        file.write("}\nnot json\n")
    assert [event["kind"] for event in tail()] == ["b"]


def test_an_interrupted_run_is_summarised_from_its_events() -> None:
    cut = EVENTS[: len(EVENTS) // 2]
    found = rows.from_events(cut)
    assert found
    assert all(row.partial and row.completed > 0 for row in found)
    first = found[0]
    assert first.concurrency == 1
    assert first.output_tok_s == pytest.approx(first.completed * first.output_tokens.mean / first.window_s)


def test_percentiles_are_interpolated() -> None:
    assert rows.percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert rows.describe([]).mean is None
    assert rows.describe([5.0]).std == 0.0


def test_a_missing_seam_is_said_in_the_live_line() -> None:
    state = live.on_event(LiveState(steps=1, duration_s=1.0), {"kind": "seam_missing", "reason": "0.9"})
    assert "no live data" in state.line()


def test_events_never_hold_the_text_of_a_request() -> None:
    keys = {
        key
        for line in (FIXTURES / "guidellm-events-0.8.1.jsonl").read_text().splitlines()
        for key in json.loads(line)
    }
    assert not keys & {"prompt", "messages", "output", "text", "request_args"}
