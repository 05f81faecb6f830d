"""A fake engine behind the real launcher, and counts of what is left afterwards."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_helpers import held

from k3ctl.engine import procs

FACTS = '{"python":[3,11,7],"vllm":"0.33.0","torch":"2.13.0","runtime":true,"plugins":["lora"]}'
FAKE = Path(__file__).with_name("fake_engine.py")


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
    yield held
    for pid in [int(line.split()[0]) for line in held()["processes"]]:
        procs.send(pid, 9)
