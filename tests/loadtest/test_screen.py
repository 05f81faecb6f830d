"""``k3ctl bench --tui`` without a terminal: a load behind the headless screen."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from k3ctl.commands.bench.screen import _Job, watch
from k3ctl.errors import EngineError, ExitCode
from k3ctl.loadtest.driver import BenchResult
from k3ctl.loadtest.target import Target
from tests.loadtest import mock_server


def target_of(server: mock_server.Server) -> Target:
    return Target(url=server.url, model="k3-tiny", tokenizer="x")


def test_the_screen_closes_when_the_load_ends_and_hands_on_its_result(
    mock: mock_server.Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "raw").mkdir()

    def load(stop: threading.Event, on_line: Callable[[str], None]) -> BenchResult:
        event = {
            "ts": time.time(),
            "kind": "bench_start",
            "strategy": "concurrent@1",
            "detail": {"streams": 1},
        }
        (tmp_path / "raw" / "events.jsonl").write_text(json.dumps(event) + "\n")
        on_line("not while the screen is up")
        stop.wait(1.0)
        return BenchResult(tmp_path, {"rows": []}, ExitCode.OK)

    result = watch(load, target_of(mock), None, tmp_path, headless=True)
    assert result.exit_code is ExitCode.OK
    assert "not while the screen is up" not in capsys.readouterr().err


def test_an_error_of_the_load_comes_out_of_the_screen(mock: mock_server.Server, tmp_path: Path) -> None:
    def load(stop: threading.Event, on_line: Callable[[str], None]) -> BenchResult:
        raise EngineError("the server went away")

    with pytest.raises(EngineError, match="went away"):
        watch(load, target_of(mock), None, tmp_path, headless=True)


def test_after_the_screen_lines_go_on_and_ctrl_c_stops_the_load(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def load(stop: threading.Event, on_line: Callable[[str], None]) -> BenchResult:
        while not stop.wait(0.1):
            on_line("step 1/1")
        return BenchResult(tmp_path, {"rows": []}, ExitCode.INTERRUPTED)

    job = _Job(load)
    job.start(when_done=lambda: None)
    threading.Timer(0.6, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert job.finish().exit_code is ExitCode.INTERRUPTED
    assert "step 1/1" in capsys.readouterr().err
