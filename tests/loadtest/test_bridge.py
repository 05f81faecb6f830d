"""The bridge with a stand-in for GuideLLM: what it does when the seam is not the one it knows. No heavy import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from k3ctl.loadtest.clients import BRIDGE

CLI = """
import json, os, sys, time
def cli(args, prog_name, standalone_mode):
    open("argv.json", "w").write(json.dumps(args))
    if os.environ.get("FAKE") == "hang":
        time.sleep(60)
    if os.environ.get("FAKE") == "crash":
        raise RuntimeError("boom")
    sys.exit(int(os.environ.get("FAKE_STATUS", "0")))
"""
ARGUMENTS = ["run", "--backend", '{"kind":"openai_http"}', "--tokenizer", '{"model":"nowhere"}']


@pytest.fixture
def fake(tmp_path: Path) -> Any:
    """``fake(version)`` → a directory for PYTHONPATH with a package called guidellm."""

    def make(version: str) -> Path:
        site = tmp_path / "site"
        (site / "guidellm").mkdir(parents=True)
        (site / "guidellm" / "__init__.py").write_text("")
        (site / "guidellm" / "cli.py").write_text(CLI)
        meta = site / f"guidellm-{version}.dist-info"
        meta.mkdir()
        (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: guidellm\nVersion: {version}\n")
        return site

    return make


def command(site: Path, work: Path, **env: str) -> dict[str, Any]:
    return {
        "args": [sys.executable, str(BRIDGE), "events.jsonl", *ARGUMENTS],
        "cwd": work,
        "env": {**os.environ, "PYTHONPATH": str(site), **env},
        "start_new_session": True,
    }


def events(work: Path) -> dict[str, dict[str, Any]]:
    lines = (work / "events.jsonl").read_text().splitlines()
    return {event["kind"]: event for event in map(json.loads, lines)}


def test_another_version_runs_without_live_data(fake: Any, tmp_path: Path) -> None:
    done = subprocess.run(
        **command(fake("0.9.0"), tmp_path, FAKE_STATUS="3"), capture_output=True, timeout=120
    )
    found = events(tmp_path)
    assert done.returncode == 3
    assert found["client"]["version"] == "0.9.0"
    assert "0.9.0, known 0.8.1" in found["seam_missing"]["reason"]
    assert found["exit"]["status"] == 3
    assert json.loads((tmp_path / "argv.json").read_text()) == ARGUMENTS


def test_a_moved_seam_of_the_known_version_is_seen(fake: Any, tmp_path: Path) -> None:
    done = subprocess.run(**command(fake("0.8.1"), tmp_path), capture_output=True, timeout=120)
    assert done.returncode == 0
    assert "ModuleNotFoundError" in events(tmp_path)["seam_missing"]["reason"]


def test_the_api_key_reaches_the_client_but_no_command_line(fake: Any, tmp_path: Path) -> None:
    how = command(fake("0.9.0"), tmp_path, K3CTL_BENCH_API_KEY="planted-key")
    subprocess.run(**how, capture_output=True, timeout=120)
    assert "planted-key" not in " ".join(how["args"])
    argv = json.loads((tmp_path / "argv.json").read_text())
    assert json.loads(argv[2]) == {"kind": "openai_http", "api_key": "planted-key"}
    assert "planted-key" not in (tmp_path / "events.jsonl").read_text()


def test_a_crash_of_the_client_is_an_event(fake: Any, tmp_path: Path) -> None:
    done = subprocess.run(**command(fake("0.9.0"), tmp_path, FAKE="crash"), capture_output=True, timeout=120)
    assert done.returncode == 1
    assert events(tmp_path)["fatal"]["error"] == "RuntimeError: boom"


def test_the_client_ends_when_the_process_that_started_it_is_gone(fake: Any, tmp_path: Path) -> None:
    how = command(fake("0.9.0"), tmp_path, FAKE="hang")
    middle = (
        "import os, subprocess, sys, json; h = json.loads(sys.argv[1]); "
        "h['env']['K3CTL_BENCH_PARENT'] = str(os.getpid()); "
        "print(subprocess.Popen(**h, stdout=-3, stderr=-3).pid)"
    )
    plain = json.dumps({**how, "cwd": str(how["cwd"])})
    # the middle process starts the bridge and exits at once
    started = subprocess.run(
        [sys.executable, "-c", middle, plain], capture_output=True, text=True, timeout=60
    )
    pid = int(started.stdout)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and not _zombie(pid):
        assert time.monotonic() < deadline, "the client outlived its parent"
        time.sleep(0.1)


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True
