"""A fake engine behind the real launcher, and counts of what is left afterwards."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from k3ctl.engine import procs, rundir

FACTS = '{"python":[3,11,7],"vllm":"0.33.0","torch":"2.13.0","runtime":true,"plugins":["lora"]}'
FAKE = Path(__file__).with_name("fake_engine.py")


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def recorded() -> set[str]:
    """Names that the runs noted as theirs, and the one that the fake engine is told to make."""
    noted = [run.dir / "segments" for run in rundir.all_runs()]
    names = {name for file in noted if file.exists() for name in file.read_text().split()}
    return names | {os.environ.get("FAKE_SHM", "-")}


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("K3CTL_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def fake_python(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `python` that claims vLLM 0.33.0 and our runtime, and runs the fake engine instead."""
    script = tmp_path / "python"
    script.write_text(
        f"""#!/bin/sh
case "$*" in
  *importlib.metadata*) echo '{FACTS}' ;;
  *runtime.tiny*) eval "out=\\${{$#}}"; mkdir -p "$out"; echo '{{}}' > "$out/config.json" ;;
  *) exec {sys.executable} {FAKE} "$@" ;;
esac
"""
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("K3CTL_ENGINE_PYTHON", str(script))
    return script


@pytest.fixture
def leftovers(state_dir: Path) -> Iterator[Callable[[], dict[str, list[str]]]]:
    """What the runs of this test hold now: processes, shared-memory files, socket directories."""

    def look() -> dict[str, list[str]]:
        sessions = {run.session for run in rundir.all_runs()} - {0}
        return {
            "processes": [
                f"{p.pid} {procs.command_line(p.pid)}"
                for p in procs.everyone()
                if p.session in sessions and p.state not in "ZX"
            ],
            "segments": sorted(shared_memory() & recorded()),
            "scratch": [path for run in rundir.all_runs() for path in run.scratch if Path(path).exists()],
        }

    yield look
    for pid in [int(line.split()[0]) for line in look()["processes"]]:
        procs.send(pid, 9)
