"""`k3ctl validate` on the real CPU engine: what passes, what is void, what is kept when it is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, Server

QUICK = ("canary.floods", "canary.json-schema", "features.batch.2", "features.context.4096")


def validate(server: Server, *options: str, timeout: float = 280) -> tuple[int, dict[str, Any]]:
    done = server.k3ctl("validate", *options, "--json", timeout=timeout)
    told = json.loads(done.stdout)
    return done.returncode, told["data"] or told["error"]


def outcomes(data: dict[str, Any]) -> dict[str, str]:
    return {result["check"]: result["outcome"] for result in data["results"]}


def test_a_sound_server_passes_on_its_path_and_the_evidence_is_sealed(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "v"
    only = [word for name in QUICK for word in ("--only", name)]
    code, data = validate(server, "canary", "features", *only, "--out", str(out))
    assert code == 0, [(r["check"], r["statement"]) for r in data["results"] if r["outcome"] != "passed"]
    assert outcomes(data) == {**dict.fromkeys(QUICK, "passed"), "features.context.4096": "not run"}
    for result in data["results"]:
        seen = result["interval"]
        if result["outcome"] == "passed":
            assert seen["claimed"] == "specialized" and seen["on_path"] == seen["decode_steps"] > 0
    assert server.k3ctl("bundle", "verify", str(out)).returncode == 0
    assert (out / "servers" / next(iter(data["servers"])) / "engine.json").is_file()
    code, error = validate(server, "canary", "features", *only, "--out", str(out), "--resume")
    assert code == 2 and "sealed" in error["message"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_canary_and_features_pass_whole(server: Server, tmp_path: Path) -> None:
    code, data = validate(server, "canary", "features", "--out", str(tmp_path / "v"), timeout=1500)
    assert code == 0, data["holes"]
    assert set(outcomes(data).values()) == {"passed", "not run"}
    assert data["counts"]["passed"] >= 27


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_server_that_refused_the_path_it_was_started_for_passes_nothing(
    other_server: Callable[..., Server], tmp_path: Path
) -> None:
    refused = other_server("--profile", "cpu-tiny", "--set", "speculative_config.num_speculative_tokens=8")
    only = ("--only", "canary.floods", "--only", "features.batch.8", "--only", "features.seeds")
    code, data = validate(refused, "canary", "features", *only, "--out", str(tmp_path / "v"), timeout=900)
    assert code == 1
    assert set(outcomes(data).values()) == {"void"}
    assert all("refused" in result["statement"] for result in data["results"])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_one_matrix_over_two_servers(
    server: Server, other_server: Callable[..., Server], tmp_path: Path
) -> None:
    axes = (
        "--matrix",
        "--batches",
        "1,4",
        "--contexts",
        "128,512",
        "--drafts",
        "0,3",
        "--out",
        str(tmp_path / "m"),
    )
    code, data = validate(server, *axes, timeout=900)
    assert code == 1 and len(data["holes"]) == 4
    plain = other_server("--profile", "cpu-tiny", "--set", "speculative_config=none")
    code, data = validate(plain, *axes, "--resume", timeout=900)
    assert (code, data["holes"], data["counts"]["passed"]) == (0, [], 8)
    assert plain.k3ctl("bundle", "verify", str(tmp_path / "m")).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_in_the_middle_it_goes_on_and_runs_nothing_twice(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "v"
    command = [sys.executable, "-m", "k3ctl", "validate", "canary", "--out", str(out)]
    running = subprocess.Popen(
        command, env=server.env, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    results = out / "raw" / "results.jsonl"
    deadline = time.monotonic() + 240
    while not (results.exists() and len(results.read_text().splitlines()) >= 2):
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    running.send_signal(signal.SIGKILL)
    running.wait()
    before = [json.loads(line) for line in results.read_text().splitlines() if line.endswith("}")]
    assert not (out / "SHA256SUMS").exists()
    code, data = validate(server, "canary", "--out", str(out), "--resume", timeout=600)
    assert code == 0
    names = [result["check"] for result in data["results"]]
    assert len(names) == len(set(names))
    for kept in before:
        again = next(result for result in data["results"] if result["check"] == kept["check"])
        assert again["started_at"] == kept["started_at"]
