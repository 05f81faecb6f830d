"""A real server for the end-to-end tests: one for the package, started and stopped through k3ctl itself."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
START_TIMEOUT_S = 280


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = importlib.util.find_spec("vllm") is None
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            if missing:
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed: `make setup-dev`"))


@dataclass(frozen=True)
class Server:
    """A server started by ``k3ctl serve --detach``, and the k3ctl that sees it."""

    url: str
    run_id: str
    run_dir: Path
    env: dict[str, str]

    def k3ctl(self, *args: str, timeout: float = 200) -> subprocess.CompletedProcess[str]:
        """Run a command against the same state directory."""
        return k3ctl(*args, env=self.env, timeout=timeout)


def k3ctl(*args: str, env: dict[str, str], timeout: float = 200) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "k3ctl", *args]
    return subprocess.run(
        command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
    )


def environment(state: Path) -> dict[str, str]:
    return {**os.environ, "K3CTL_STATE_DIR": str(state), "OMP_NUM_THREADS": "1"}


def start(state: Path, *args: str) -> Server:
    env = environment(state)
    done = k3ctl("serve", *args, "--port", "0", "--detach", "--json", env=env, timeout=START_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    run = json.loads(done.stdout)["data"]
    run_id = run["id"]
    return Server(run["url"], run_id, state / "runs" / run_id, env)


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The tiny K3 as its profile serves it: speculation, prefix cache, specialized decode."""
    running = start(tmp_path_factory.mktemp("state"), "--profile", "cpu-tiny")
    try:
        yield running
    finally:
        stopped = running.k3ctl("stop", running.run_id)
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr


@pytest.fixture
def other_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts a server of one test's own; stopped after it."""
    running: list[Server] = []

    def begin(*args: str) -> Server:
        running.append(start(tmp_path / f"state{len(running)}", *args))
        return running[-1]

    yield begin
    for one in running:
        one.k3ctl("stop", one.run_id)


def post(url: str, body: dict[str, Any]) -> Any:
    import httpx

    answer = httpx.post(url, json=body, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.json()
