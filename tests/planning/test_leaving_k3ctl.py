"""The rendered files start the same server without k3ctl: the real CPU engine, from the script alone."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from k3ctl.planning.render import render
from k3ctl.profiles.loader import load
from k3ctl.profiles.resolve import resolve

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def server(tmp_path):
    pytest.importorskip("vllm")
    subprocess.run(
        [sys.executable, "-m", "runtime.tiny", "--out", str(tmp_path / "tiny")], check=True, cwd=ROOT
    )
    port = free_port()
    resolved = resolve(load("cpu-tiny"), {"port": str(port)}).with_model_path(str(tmp_path / "tiny"))
    script = tmp_path / "cpu-tiny.sh"
    script.write_text(render(resolved, "command")["cpu-tiny.sh"])
    (tmp_path / "witness").mkdir()
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "K3_WITNESS_DIR": str(tmp_path / "witness"),
    }
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(["bash", str(script)], stdout=log, stderr=log, env=env)
    try:
        yield process, f"http://127.0.0.1:{port}", tmp_path / "log"
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()


def test_the_script_serves_and_stops(server):
    process, url, log = server
    for _ in range(240):
        assert process.poll() is None, log.read_text()[-2000:]
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=2).is_success:
                break
        time.sleep(0.5)
    answer = httpx.post(
        f"{url}/v1/completions", json={"model": "k3-tiny", "prompt": "hello", "max_tokens": 8}, timeout=60
    ).json()
    assert answer["usage"]["completion_tokens"] == 8
    workers = httpx.get(f"{url}/k3/witness", timeout=10).json()["workers"]
    assert workers[0]["decode_backend"] == "latency_specialized" and workers[0]["refused"] == []
    process.terminate()
    assert process.wait(60) == 0
