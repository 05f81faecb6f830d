"""A result directory as ``k3ctl bench`` leaves it, made from recorded files: no client, no server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k3ctl.bundle.parts import Surroundings
from k3ctl.bundle.write import write
from k3ctl.engine.rundir import Run
from tests.bundle.planted import ENVIRONMENT
from tests.loadtest import results


@pytest.fixture
def make_result(tmp_path: Path) -> Callable[..., Path]:
    """``make_result(report, preset=…)`` → a directory with ``raw/``, before it becomes a bundle."""

    def make(*args: Any, name: str = "20261130-101500-8k1k", **kwargs: Any) -> Path:
        directory = results.make(tmp_path / name, *args, **kwargs)
        (directory / "raw" / "client.log").write_text("started with --api-key planted-api-key-value\n")
        return directory

    return make


@pytest.fixture
def planted_run(tmp_path: Path) -> Run:
    """A run record and an engine log full of secrets and prompts."""
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "engine.log").write_text(
        "INFO api key planted-api-key-value accepted\n"
        "INFO Authorization: Bearer Bearer-planted-0123456789\n"
        "DEBUG Request chatcmpl-1 details: prompt: 'my medical history', prompt_token_ids: [1, 2]\n"
        "INFO downloading with hf_PlantedTokenPlantedToken\n"
    )
    return Run(
        id="r1", profile="b300-tp8", host="127.0.0.1", port=30000, url="http://127.0.0.1:30000",
        served_model_name="moonshotai/Kimi-K3", tokenizer="moonshotai/Kimi-K3",
        argv=("vllm", "serve", "moonshotai/Kimi-K3", "--api-key", "planted-api-key-value"),
        env={"HF_TOKEN": "hf_PlantedTokenPlantedToken", "VLLM_USE_V2_MODEL_RUNNER": "1"},
        started_at=1.0, dir=directory,
    )  # fmt: skip


@pytest.fixture
def make_bundle(make_result: Callable[..., Path]) -> Callable[..., Path]:
    """``make_bundle(…)`` → a sealed bundle directory."""

    def make(*args: Any, around: Surroundings | None = None, **kwargs: Any) -> Path:
        directory = make_result(*args, **kwargs)
        write(directory, around or Surroundings(), environment=ENVIRONMENT)
        return directory

    return make
