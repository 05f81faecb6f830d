"""`k3ctl validate ab` on the real CPU engine: its two paths agree; a rounding error planted in one of them is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
TWO_SIDED = ("ab.tokens", "ab.logprobs", "ab.long")
ROUNDED = """
import torch
from runtime.engine.cpu import executor


def register():
    sound = executor.SpecializedMixer.kda
    executor.SpecializedMixer.kda = lambda *given: sound(*given).to(torch.bfloat16).float()
"""
PROFILE = """
schema: 1
name: cpu-rounded
extends: cpu-tiny
status: untested
summary: the CPU demo with a rounding error in its specialized path
serve: {env: {VLLM_PLUGINS: "k3_runtime,k3_witness,rounded"}}
"""


def validate(server: Server, *options: str) -> tuple[int, dict[str, Any]]:
    done = server.k3ctl("validate", "ab", "--url", server.url, "--json", *options, timeout=900)
    data = json.loads(done.stdout)["data"]
    return done.returncode, {result["check"]: result for result in data["results"]}


@pytest.fixture(scope="module")
def specialized(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers of the specialized path, kept."""
    out = tmp_path_factory.mktemp("ab") / "specialized"
    code, results = validate(server, "--out", str(out))
    assert code == 1 and all(results[name]["outcome"] == "unknown" for name in TWO_SIDED)
    for size in (2, 8):
        assert results[f"ab.batch.{size}"]["outcome"] == "passed"
    assert results["ab.batch.64"]["outcome"] == "not run"
    assert all("specialized" in results[name]["interval"]["claimed"] for name in TWO_SIDED)
    return out


def test_the_standard_path_gives_the_same_answers(
    other_server: Callable[..., Server], specialized: Path
) -> None:
    standard = other_server("--profile", "cpu-tiny", "--set", "additional_config.decode_backend=auto")
    code, results = validate(standard, "--against", str(specialized), "--only", "ab.[tl]*")
    assert code == 0 and {result["outcome"] for result in results.values()} == {"passed"}
    for result in results.values():
        assert result["evidence"]["delta_nats"]["p100"] < 1e-4
        assert result["interval"]["claimed"] == "standard" and result["interval"]["decode_steps"] > 20


def test_two_servers_at_once_and_a_rounding_error_between_them(
    server: Server, other_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = tmp_path / "plugin" / "rounded-0.dist-info"
    plugin.mkdir(parents=True)
    (plugin.parent / "rounded.py").write_text(ROUNDED)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: rounded\nVersion: 0\n")
    (plugin / "entry_points.txt").write_text("[vllm.general_plugins]\nrounded = rounded:register\n")
    (tmp_path / "cpu-rounded.yaml").write_text(PROFILE)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{plugin.parent}")
    rounded = other_server("--profile", str(tmp_path / "cpu-rounded.yaml"))
    code, results = validate(server, "--other", rounded.url, "--only", "ab.[tl]*")
    assert code == 1 and {result["outcome"] for result in results.values()} == {"failed"}
    (first, *_) = results["ab.tokens"]["evidence"]["parted"]
    assert 0 <= first["first_divergence"] < 32 and (first["margin_nats"] or 1) > 0
    assert results["ab.logprobs"]["evidence"]["other_interval"]["standing"] == "on the claimed path"
