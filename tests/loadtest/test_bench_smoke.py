"""``k3ctl bench smoke`` against a mock server: GuideLLM really runs, in its own process group."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.loadtest import mock_server

needs_guidellm = pytest.mark.skipif(
    importlib.util.find_spec("guidellm") is None, reason="GuideLLM is not installed"
)
ROOT = Path(__file__).parents[2]


def bench(*arguments: str, state: Path) -> list[str]:
    return [sys.executable, "-m", "k3ctl", "bench", *arguments]


def environment(state: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "K3CTL_STATE_DIR": str(state)}


def run(*arguments: str, state: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        bench(*arguments, state=state), env=environment(state), capture_output=True, text=True, timeout=240
    )


def group_of_bridge(state: Path) -> list[int]:
    """Pids of every process whose command line names the bridge."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
                cwd = str((entry / "cwd").readlink())
            except OSError:
                continue
            if cwd.startswith(str(state)) and b"python" in line:
                found.append(int(entry.name))
    return found


@pytest.mark.slow
@needs_guidellm
def test_smoke_reports_every_figure_and_leaves_nothing_running(
    mock: mock_server.Server, tokenizer: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    done = run("smoke", "--url", mock.url, "--tokenizer", str(tokenizer), "--json", state=state)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)["data"]
    assert data["valid"] and not data["partial"]
    assert [row["concurrency"] for row in data["rows"]] == [1, 4]
    for row in data["rows"]:
        assert row["requests"]["errored"] == 0
        assert row["requests"]["completed"] > 5
        assert row["output_tokens"]["mean"] == 16
        assert row["ttft_ms"]["mean"] > 15
        assert 3.5 < row["itl_ms"]["mean"] < 60
        assert row["server"]["path"]["share"] == 1.0
    assert "step 1/2 c=1" in done.stderr
    assert group_of_bridge(state) == []
    bodies = [request["body"] for request in mock.state.requests]
    assert all(body["ignore_eos"] and body["max_completion_tokens"] == 16 for body in bodies)


@pytest.mark.slow
@needs_guidellm
def test_a_run_that_hits_its_error_limit_fails_although_the_client_exits_with_zero(
    tokenizer: Path, tmp_path: Path
) -> None:
    with mock_server.running(mock_server.Behaviour(fail_share=0.5)) as server:
        done = run(
            "smoke", "--url", server.url, "--tokenizer", str(tokenizer), "--json", state=tmp_path / "state"
        )
    assert done.returncode == 1
    data = json.loads(done.stdout)["data"]
    assert any(f["guard"] == "errors" for row in data["rows"] for f in row["findings"])


@pytest.mark.slow
@needs_guidellm
def test_a_server_that_counts_other_tokens_makes_every_row_invalid(tokenizer: Path, tmp_path: Path) -> None:
    with mock_server.running(mock_server.Behaviour(tokens_per_byte=2)) as server:
        arguments = (
            "smoke",
            "--url",
            server.url,
            "--tokenizer",
            str(tokenizer),
            "--concurrency",
            "1",
            "--json",
        )
        done = run(*arguments, state=tmp_path / "state")
    assert done.returncode == 1
    (row,) = json.loads(done.stdout)["data"]["rows"]
    assert "the client's tokenizer makes 8 tokens of `<|open|>`, the server's 16" in str(row["findings"])


@pytest.mark.slow
@needs_guidellm
def test_a_server_that_dies_during_the_load_is_exit_4_and_what_finished_is_kept(
    tokenizer: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with mock_server.running() as server:
        arguments = (
            "smoke",
            "--url",
            server.url,
            "--tokenizer",
            str(tokenizer),
            "--duration",
            "20",
            "--json",
        )
        process = subprocess.Popen(
            bench(*arguments, state=state),
            env=environment(state),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_for(lambda: server.state.generation_tokens > 200, 120)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 4, stderr
    data = json.loads(stdout)["data"]
    assert not data["valid"] and not data["server_answers"]
    assert "the server did not answer any more at the end" in data["validity"]["reasons"]
    assert group_of_bridge(state) == []


@pytest.mark.slow
@needs_guidellm
def test_agent_sessions_are_replayed_with_their_history_and_pauses(tokenizer: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    preset = Path(__file__).with_name("agentic-short.yaml")
    with mock_server.running() as server:
        arguments = (str(preset), "--url", server.url, "--tokenizer", str(tokenizer), "--json")
        done = run(*arguments, state=state)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)["data"]
    assert [row["concurrency"] for row in data["rows"]] == [1, 3]
    one, three = data["rows"]
    assert one["requests"]["completed"] == three["requests"]["completed"] == 18
    assert one["interactivity_p90_tok_s"] == pytest.approx(1000 / one["itl_ms"]["p90"])
    assert one["output_tokens"]["mean"] == 12
    # 3 sessions of 5 pauses with a mean of 0.4 s: at least half of that must have been waited for
    assert one["window_s"] > 3
    assert three["window_s"] < one["window_s"]
    sent = [request["messages"] for request in server.state.requests]
    assert len(sent) == 36
    assert max(len(messages) for messages in sent) == 8
    assert data["validity"]["status"] == "valid"


@pytest.mark.slow
@needs_guidellm
def test_ctrl_c_keeps_what_finished_and_leaves_no_load(tokenizer: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with mock_server.running() as server:
        arguments = (
            "smoke",
            "--url",
            server.url,
            "--tokenizer",
            str(tokenizer),
            "--duration",
            "120",
            "--json",
        )
        process = subprocess.Popen(
            bench(*arguments, state=state),
            env=environment(state),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_for(lambda: server.state.generation_tokens > 100, 120)
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == 130, stderr
        assert group_of_bridge(state) == []
        before = len(server.state.requests)
        time.sleep(0.5)
        assert len(server.state.requests) == before
    data: dict[str, Any] = json.loads(stdout)["data"]
    assert data["partial"] and not data["valid"]
    assert data["rows"][0]["requests"]["completed"] > 0
    assert data["missing_steps"] == [4]
    assert data["validity"]["status"] == "partial"
    verified = subprocess.run(
        [sys.executable, "-m", "k3ctl", "bundle", "verify", data["bundle"]],
        env=environment(state),
        capture_output=True,
    )
    assert verified.returncode == 0


@pytest.mark.slow
@needs_guidellm
def test_the_load_ends_with_k3ctl_even_when_k3ctl_is_killed(tokenizer: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with mock_server.running() as server:
        arguments = ("smoke", "--url", server.url, "--tokenizer", str(tokenizer), "--duration", "120")
        process = subprocess.Popen(
            bench(*arguments, state=state),
            env=environment(state),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(lambda: server.state.generation_tokens > 100, 120)
        held = semaphores(group_of_bridge(state))
        assert held
        process.kill()
        process.wait()
        wait_for(lambda: not group_of_bridge(state), 15)
        wait_for(lambda: not [path for path in held if path.exists()], 15)


def semaphores(pids: Iterable[int]) -> set[Path]:
    """Named semaphores that these processes have mapped."""
    rows = [row for pid in pids for row in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return {Path(row.split()[-1]) for row in rows if "/dev/shm/sem." in row}


def wait_for(condition: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.1)


def test_a_dead_server_is_one_line_and_exit_4(tmp_path: Path) -> None:
    done = run("smoke", "--url", "http://127.0.0.1:9", "--model", "m", "--tokenizer", "x", state=tmp_path)
    assert done.returncode == 4
    assert "does not answer" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "bench").exists()


def test_no_server_at_all_says_how_to_start_one(tmp_path: Path) -> None:
    done = run("smoke", state=tmp_path)
    assert done.returncode == 2
    assert "k3ctl serve" in done.stderr


def test_a_wrong_tokenizer_directory_is_seen_before_the_client_starts(
    mock: mock_server.Server, tmp_path: Path
) -> None:
    done = run("smoke", "--url", mock.url, "--tokenizer", str(tmp_path), state=tmp_path / "state")
    assert done.returncode == 2
    assert "no tokenizer in" in done.stderr
    assert mock.state.requests == []


def test_the_list_of_presets_needs_no_server(tmp_path: Path) -> None:
    done = run("--list", state=tmp_path)
    assert done.returncode == 0
    assert "8k1k" in done.stdout and "smoke" in done.stdout
