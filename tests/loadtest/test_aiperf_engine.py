"""aiperf itself against the real CPU engine: its results judged, beside GuideLLM on the same sessions."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PRESET = Path(__file__).with_name("agentic-short.yaml")
K3ctl = Callable[..., subprocess.CompletedProcess[str]]
pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1500)]
SETTINGS = (
    "per_request_spec_decode_metrics=summary",
    "env.VLLM_SERVER_DEV_MODE=1",
    # on a busy machine GuideLLM comes back to a connection later than vLLM's five seconds: a ReadError
    "env.VLLM_HTTP_TIMEOUT_KEEP_ALIVE=600",
)


def executable() -> str:
    """``make setup-aiperf`` makes it; ``make test-slow`` names it."""
    own = ROOT / ".venv-aiperf" / "bin" / "aiperf"
    return os.environ.get("K3CTL_AIPERF") or (str(own) if own.is_file() else shutil.which("aiperf") or "")


@pytest.fixture(scope="module")
def k3ctl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[K3ctl]:
    """``k3ctl(*argv)`` beside a server that tells acceptance per request and empties its prefix cache when asked."""
    if not executable() or importlib.util.find_spec("guidellm") is None:
        pytest.skip("needs GuideLLM and aiperf (`make setup-aiperf`)")
    state = tmp_path_factory.mktemp("state")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "K3CTL_STATE_DIR": str(state),
        "K3CTL_AIPERF": executable(),
    }

    def run(*argv: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "k3ctl", *map(str, argv)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)

    options = [word for setting in SETTINGS for word in ("--set", setting)]
    served = run("serve", "--profile", "cpu-tiny", "--detach", "--port", "0", *options)
    assert served.returncode == 0, served.stderr
    try:
        yield run
    finally:
        assert run("stop").returncode == 0


def bench(k3ctl: K3ctl, *options: object) -> dict[str, Any]:
    done = k3ctl("bench", PRESET, "--json", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout)["data"])


@pytest.fixture(scope="module")
def aiperf(k3ctl: K3ctl) -> dict[str, Any]:
    return bench(k3ctl, "--client", "aiperf")


@pytest.fixture(scope="module")
def guidellm(k3ctl: K3ctl) -> dict[str, Any]:
    # it ends when every session was replayed, however slow the machine is
    return bench(k3ctl, "--duration", 600)


def result(data: dict[str, Any], concurrency: int) -> dict[str, Any]:
    """aiperf's own result of a rung."""
    path = Path(data["bundle"]) / "raw" / f"aiperf-{concurrency}" / "profile_export_aiperf.json"
    return dict(json.loads(path.read_text()))


def test_its_rows_are_aiperfs_figures_and_each_rung_has_a_window_of_its_own(aiperf: dict[str, Any]) -> None:
    assert aiperf["valid"] and aiperf["client"]["tool"] == "aiperf 0.13.0"
    assert [row["concurrency"] for row in aiperf["rows"]] == [1, 3]
    steps = []
    for row in aiperf["rows"]:
        own = result(aiperf, row["concurrency"])
        assert row["requests"]["completed"] == own["request_count"]["avg"]
        assert row["output_tok_s"] == pytest.approx(own["output_token_throughput"]["avg"])
        assert row["output_tokens"]["mean"] == 12  # ignore_eos arrived
        assert row["server"]["seconds"] <= row["window_s"] + 2
        steps.append(row["server"]["path"]["decode_and_mixed"])
    assert steps[0] != steps[1]


def test_its_acceptance_length_is_not_tokens_per_step(aiperf: dict[str, Any]) -> None:
    """The trap: aiperf's first line is the mean over requests; its token-weighted one is what k3ctl says."""
    for row in aiperf["rows"]:
        own, told = result(aiperf, row["concurrency"]), row["acceptance"]
        assert told["requests"] == row["requests"]["completed"]
        assert told["request_mean"] == pytest.approx(own["spec_decode_acceptance_length"]["avg"], rel=1e-6)
        weighted = own["spec_decode_token_weighted_acceptance_length"]["avg"]
        assert told["length"] == pytest.approx(weighted, rel=1e-6)
        assert told["request_mean"] > told["length"]
        # the server's counters over the same window agree, but for requests over its edges
        assert row["server"]["acceptance_length"] == pytest.approx(told["length"], rel=0.1)


def test_the_prefix_cache_was_emptied_before_every_rung(
    aiperf: dict[str, Any], guidellm: dict[str, Any]
) -> None:
    for data in (aiperf, guidellm):
        assert [row["prefix_cache_reset"] for row in data["rows"]] == ["emptied", "emptied"]
        assert not [f for row in data["rows"] for f in row["findings"] if f["guard"] == "prefix-reset"]


def test_its_folder_is_judged_as_a_result_that_nobody_saw(k3ctl: K3ctl, aiperf: dict[str, Any]) -> None:
    folder = Path(aiperf["bundle"]) / "raw" / "aiperf-3"
    done = k3ctl("bench", "judge", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOT SEEN RUNNING" in done.stdout
    assert k3ctl("bundle", "verify", aiperf["bundle"]).returncode == 0


def test_both_clients_send_sessions_of_the_same_shape(
    aiperf: dict[str, Any], guidellm: dict[str, Any]
) -> None:
    """Same lengths within a 64-token block, same acceptance within noise; a comparison of speed is refused."""
    for one, other in zip(aiperf["rows"], guidellm["rows"], strict=True):
        assert one["prompt_tokens"]["mean"] == pytest.approx(other["prompt_tokens"]["mean"], abs=32)
        assert one["output_tokens"]["mean"] == other["output_tokens"]["mean"] == 12
        assert one["acceptance"]["length"] == pytest.approx(other["acceptance"]["length"], abs=0.15)
    differ = set(aiperf["conditions"]) & {
        name for name, value in aiperf["conditions"].items() if value != guidellm["conditions"][name]
    }
    assert differ == {"client", "load"}


def test_every_rank_states_a_fingerprint(guidellm: dict[str, Any]) -> None:
    (rank,) = guidellm["ranks"]["ranks"]
    assert rank["torch"] and rank["cpu_count"] >= 1
    assert (guidellm["ranks"]["differ"], guidellm["ranks"]["missing"]) == ([], [])


def test_mlperfs_rules_refuse_the_tiny_model_before_anything_is_run(k3ctl: K3ctl, tmp_path: Path) -> None:
    done = k3ctl("bench", "mlperf", "--concurrency", "1,4,16", "--json", "--out", tmp_path / "points")
    assert done.returncode == 1
    data = json.loads(done.stdout)["data"]
    refused = {one["rule"] for one in data["standings"] if one["word"] == "refused"}
    assert {"checkpoint", "drafter", "points", "regions"} <= refused
    assert not (tmp_path / "points").exists()
