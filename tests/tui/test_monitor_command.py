"""`k3ctl monitor` without a screen: what goes to stdout, what to stderr, and with which exit status."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k3ctl.server.client import SCREEN_S
from k3ctl.telemetry import recording
from k3ctl.telemetry.events import MetricsRead
from tests.server.test_client import send, serving
from tests.telemetry.feeding import FIXTURES
from tests.tui.scenarios import healthy, stalled

ROOT = Path(__file__).resolve().parent.parent.parent


def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "K3CTL_STATE_DIR": str(tmp_path / "state"), "PYTHONPATH": str(ROOT), "TZ": "UTC"}


def k3ctl(tmp_path: Path, *args: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "k3ctl", "monitor", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment(tmp_path))


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[Callable[[], list[Any]]], Path]:
    def write(scenario: Callable[[], list[Any]]) -> Path:
        path = tmp_path / "recording.jsonl"
        recorder = recording.Recorder(path)
        for event in scenario():
            recorder.write(event)
        recorder.close()
        return path

    return write


def page_server(name: str) -> Callable[[Any], None]:
    body = (FIXTURES / name).read_bytes()
    return lambda handler: send(handler, body) if handler.path == "/metrics" else send(handler, b"no", 404)


def test_once_prints_a_snapshot_for_people(tmp_path: Path) -> None:
    with serving(page_server("metrics-preempting-kv-full.prom")) as url:
        done = k3ctl(tmp_path, "--once", "--no-gpus", "--interval", "0.2", "--url", url)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "tokens      out 410,000, prompt 9,000,000 since start" in done.stdout
    assert "18.4 of 18.4 full-length sequences" in done.stdout
    assert "WARN preempting" in done.stdout
    assert "runs without k3ctl's runtime plugin" in done.stdout
    assert "\x1b" not in done.stdout


def test_once_as_json_has_the_same_figures(tmp_path: Path) -> None:
    with serving(page_server("metrics-healthy-c1-k7-al3.84.prom")) as url:
        done = k3ctl(tmp_path, "--json", "--no-gpus", "--interval", "0.2", "--url", url)
    answer = json.loads(done.stdout)
    data = answer["data"]
    assert (answer["schema"], answer["exit_code"], done.returncode) == ("k3ctl.monitor/1", 0, 0)
    assert set(data) == {
        "at", "servers", "load", "path", "nodes", "bench", "stages", "incidents", "absent", "alerts"
    }  # fmt: skip
    assert data["load"]["totals"]["generation_tokens"] == 10000
    assert data["load"]["acceptance"]["length"] == pytest.approx(3.84, abs=1e-3)
    assert data["load"]["ttft_s"]["p50"] == [0.25, 0.5]
    assert data["servers"][0]["engines"][0]["running"] == 1
    assert data["path"]["known"] is False


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [(b"<html>", 200, "HTML instead of metrics"), (b"", 503, "HTTP 503"), (b"sglang:x 1\n", 200, "sglang")],
    ids=["html", "503", "another-engine"],
)
def test_a_server_that_gives_no_metrics_is_named_and_exits_4(
    tmp_path: Path, body: bytes, status: int, reason: str
) -> None:
    with serving(lambda handler: send(handler, body, status)) as url:
        done = k3ctl(tmp_path, "--once", "--no-gpus", "--interval", "0.2", "--url", url)
    assert done.returncode == 4
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_one_look_waits_for_a_server_that_is_slower_than_the_screen_allows(tmp_path: Path) -> None:
    quick = page_server("metrics-nospec-c64.prom")

    def slow(handler: Any) -> None:
        time.sleep(SCREEN_S + 0.5)
        quick(handler)

    with serving(slow) as url:
        done = k3ctl(tmp_path, "--once", "--no-gpus", "--interval", "0.2", "--url", url)
    assert done.returncode == 0, done.stderr


def test_one_good_server_of_two_is_enough(tmp_path: Path) -> None:
    with serving(page_server("metrics-nospec-c64.prom")) as url:
        done = k3ctl(
            tmp_path, "--json", "--no-gpus", "--interval", "0.2", "--url", url, "--url", "127.0.0.1:9"
        )
    assert done.returncode == 0
    states = [server["state"] for server in json.loads(done.stdout)["data"]["servers"]]
    assert sorted(states) == ["up", "waiting"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--url", "http://h:99999"], "not a server address"),
        (["--replay", "none.jsonl"], "cannot read the recording"),
        (["--replay", "x", "--url", "h:1"], "cannot be combined"),
        (["--profile", "gb300-tp61", "--once"], "unknown profile"),
        (["--run", "no-such-run", "--once"], "no run"),
        (["--interval", "0"], "--interval"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(tmp_path: Path, args: list[str], message: str) -> None:
    done = k3ctl(tmp_path, *args)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_replay_into_a_pipe_is_one_plain_line_per_interval(tmp_path: Path, recorded: Any) -> None:
    done = k3ctl(tmp_path, "--replay", str(recorded(stalled)), "--speed", "512", "--interval", "20")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert len(lines) == 17
    assert "\x1b" not in done.stdout
    assert "14:04:59 · out 0 tok/s" not in lines[0]
    assert lines[-1].startswith("14:05:00 · out 0 tok/s")
    assert lines[-1].endswith("FAIL stalled")
    assert "specialized 97" in lines[10]


def test_the_end_of_a_replay_as_json(tmp_path: Path, recorded: Any) -> None:
    done = k3ctl(tmp_path, "--replay", str(recorded(stalled)), "--json")
    data = json.loads(done.stdout)["data"]
    assert [alert["rule"] for alert in data["alerts"]] == ["stalled"]
    assert len(data["nodes"][0]["gpus"]) == 4


def test_a_truncated_recording_plays_with_a_warning(tmp_path: Path, recorded: Any) -> None:
    path = recorded(healthy)
    path.write_bytes(path.read_bytes()[:-30])
    done = k3ctl(tmp_path, "--replay", str(path), "--once")
    assert done.returncode == 0
    assert "1 damaged lines skipped" in done.stderr


def test_live_lines_and_a_recording_until_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "live.jsonl"
    with serving(page_server("metrics-healthy-c1-k7-al3.84.prom")) as url:
        command = [sys.executable, "-m", "k3ctl", "monitor", "--url", url, "--no-gpus", "--interval", "0.2"]
        process = subprocess.Popen(
            [*command, "--record", str(path)], stdout=subprocess.PIPE, text=True, env=environment(tmp_path)
        )
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        serving_line = next(line for line in lines if "running 1" in line)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        process.stdout.close()
    assert "AL 3.84" in serving_line
    assert any(isinstance(event, MetricsRead) for event in recording.read(path).events)


def test_on_a_terminal_it_is_a_screen_and_q_leaves_with_0(tmp_path: Path, recorded: Any) -> None:
    path = recorded(healthy)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(environment(tmp_path), TERM="xterm-256color", COLUMNS="100", LINES="30")
        os.execv(sys.executable, [sys.executable, "-m", "k3ctl", "monitor", "--replay", str(path)])
    shown = b""
    end = time.monotonic() + 30
    while b"Overview" not in shown and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 1 << 16)
    assert b"Overview" in shown
    os.write(terminal, b"q")
    while time.monotonic() < end:
        try:
            if select.select([terminal], [], [], 0.2)[0] and not os.read(terminal, 1 << 16):
                break
        except OSError:
            break
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)


def test_the_toolkit_is_not_imported_for_the_help_or_a_snapshot() -> None:
    code = "import sys; from k3ctl.cli import main; main({args!r}); print('textual' in sys.modules)"
    for args in (
        ["--help"],
        ["monitor", "--help"],
        ["monitor", "--once", "--no-gpus", "--url", "127.0.0.1:9"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", code.format(args=args)], capture_output=True, text=True, cwd=ROOT
        )
        assert done.stdout.splitlines()[-1] == "False"
