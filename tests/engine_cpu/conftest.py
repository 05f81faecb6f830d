"""Runs one engine case in a child process and compares it with the full-sequence reference."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ENGINE_ENV = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_PLUGINS": "k3_runtime,k3_witness",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # vLLM compiles the ranking behind log probabilities: ten seconds a case
    "OMP_NUM_THREADS": "1",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = importlib.util.find_spec("vllm") is None
    for item in items:
        if HERE in item.path.parents and item.path.name != "test_sources.py":
            item.add_marker(pytest.mark.engine)
            if missing:
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed: `make setup-dev`"))


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "tiny"
    subprocess.run([sys.executable, "-m", "runtime.tiny", "--out", out], check=True, cwd=ROOT)
    return out


@pytest.fixture
def run_case(tiny_dir: Path) -> Callable[..., dict[str, Any]]:
    def run(engine: dict[str, Any], **case: Any) -> dict[str, Any]:
        argument = json.dumps({"engine": {"model": str(tiny_dir), **engine}, **case})
        with tempfile.TemporaryDirectory(prefix="k3-") as scratch:  # short: vLLM's sockets go there, and stay
            places = {"PYTHONPATH": str(ROOT), "TMPDIR": scratch, "VLLM_RPC_BASE_PATH": scratch}
            child = subprocess.run(
                [sys.executable, HERE / "engine_case.py", argument],
                env={**os.environ, **ENGINE_ENV, **places}, capture_output=True, text=True, timeout=280, cwd=tiny_dir,
            )  # fmt: skip
        assert child.returncode == 0, child.stdout[-2000:] + child.stderr[-4000:]
        line = next(row for row in child.stdout.splitlines() if row.startswith("RESULT"))
        return dict(json.loads(line.removeprefix("RESULT")))

    return run


def prompts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(6, 1000) for _ in range(n)] for n in lengths]
