"""`bench --dry-run` prints what a run would execute: compared with what a run does execute, word for word."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from k3ctl.loadtest import driver, workload
from k3ctl.loadtest.child import Child
from k3ctl.loadtest.target import Target
from tests.in_process import k3ctl
from tests.loadtest import mock_server

SECRET = "sk-abcdefghijklmnopqrstuvwx"
ELSEWHERE = ("--url", "http://127.0.0.1:9", "--model", "m", "--tokenizer", "t")


def dry(*words: str) -> dict[str, Any]:
    done = k3ctl("bench", *words, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def aiperf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "aiperf"
    program.write_text("#!/bin/sh\necho aiperf 0.13.0\n")
    program.chmod(0o755)
    monkeypatch.setenv("K3CTL_AIPERF", str(program))


@pytest.mark.parametrize(
    ("preset", "client"), [("smoke", "guidellm"), ("agentic", "guidellm"), ("agentic", "aiperf")]
)
def test_the_printed_command_is_the_executed_one(
    mock: mock_server.Server,
    aiperf: None,
    tmp_path: Path,
    preset: str,
    client: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    executed: list[tuple[list[str], Path, dict[str, str]]] = []

    class Recorded(Child):
        def __init__(self, argv: Any, *, cwd: Path, env: Any, log: Path) -> None:
            executed.append((list(argv), cwd, dict(env)))
            super().__init__(["true"], cwd=cwd, env=env, log=log)

    monkeypatch.setattr(driver, "Child", Recorded)
    load = workload.override(workload.load(preset), concurrency=(1, 3), duration_s=7.0)
    out = tmp_path / "out"
    printed = dry(
        preset, "--url", mock.url, "--model", "k3-tiny", "--tokenizer", "some/tokenizer", "--client", client,
        "--concurrency", "1,3", "--duration", "7", "--out", str(out),
    )["data"]["benches"][0]  # fmt: skip
    before = dict(os.environ)
    with pytest.raises(Exception, match="no result"):
        driver.run(load, Target(mock.url, "k3-tiny", "some/tokenizer"), out=out, tool=client, api_key=SECRET)
    assert [argv for argv, _, _ in executed] == [run["command"] for run in printed["runs"]]
    assert {str(cwd) for _, cwd, _ in executed} == {printed["directory"]}
    changed = {name: value for name, value in executed[0][2].items() if before.get(name) != value}
    assert changed.pop("K3CTL_BENCH_PARENT")
    assert changed.pop("K3CTL_BENCH_API_KEY") == SECRET
    assert printed["environment"].pop("K3CTL_BENCH_API_KEY") == "***"
    assert printed["environment"] == changed


def test_it_needs_neither_a_server_nor_a_client_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("K3CTL_AIPERF", "/no/such/aiperf")
    monkeypatch.setenv("K3CTL_STATE_DIR", str(tmp_path))
    value = dry("agentic", "--client", "aiperf", *ELSEWHERE)
    assert value["data"]["benches"][0]["runs"][0]["command"][0] == "aiperf"
    assert "aiperf was not found" in value["warnings"][0]
    assert not list(tmp_path.iterdir()), "a dry run writes nothing"


def test_what_is_printed_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    """The lines run: with the interpreter replaced by one that prints its arguments, they are the JSON's words."""
    words = ("smoke", *ELSEWHERE[:-1], "a tokenizer's directory", "--out", str(tmp_path / "o u t"))
    runs = dry(*words)["data"]["benches"][0]["runs"]
    text = k3ctl("bench", *words, "--dry-run").stdout
    shell = shutil.which("sh")
    assert shell is not None
    (tmp_path / "o u t" / "raw").mkdir(parents=True)
    said = f"{sys.executable} -c 'import json,sys; print(json.dumps(sys.argv[1:]))'"
    done = subprocess.run([shell, "-ec", text.replace(sys.executable, said)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [run["command"][1:] for run in runs]


def test_no_secret_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    body = (
        "smoke",
        "--url",
        f"http://me:{SECRET}@127.0.0.1:9",
        "--model",
        "m",
        "--tokenizer",
        f"https://u:{SECRET}@h/t",
    )
    done = k3ctl("bench", *body, "--dry-run")
    assert done.returncode == 0 and SECRET not in done.stdout + done.stderr
    assert "K3CTL_BENCH_API_KEY='***'" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("judge",), "starts none"),
        (("mlperf",), "starts none"),
        (("smoke",), "without a server give --url, --model and --tokenizer"),
        (("smoke", "--client", "aiperf", *ELSEWHERE), "replays sessions"),
        (("no-such-preset", *ELSEWHERE), "unknown preset"),
    ],
)
def test_what_cannot_be_printed_is_one_line(
    words: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("K3CTL_STATE_DIR", str(tmp_path))
    done = k3ctl("bench", *words, "--dry-run")
    assert done.returncode == 2
    assert says in done.stderr and "Traceback" not in done.stderr
