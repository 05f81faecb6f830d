"""Four trays for the tests of a module, and the operator's side: ssh, a state directory, k3ctl in the path."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import ROOT, Lab, missing

FAKE = ROOT / "tests" / "engine" / "fake_engine.py"
FACTS = '{"python":[3,11,7],"vllm":"0.33.0","torch":"2.13.0","runtime":true,"plugins":["lora"]}'
TRAYS = 4


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture(scope="module")
def engine_python() -> str | None:
    """A Python that stands in for the engine's; None for the real one. Modules override it."""
    return "fake"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, engine_python: str | None) -> Iterator[Lab]:
    if reason := missing():
        pytest.skip(f"no trays: {reason}")
    # not below /tmp: every tray has a /tmp of its own
    base = Path("/var/tmp") / f"k3lab-{os.getpid()}"
    base.mkdir(mode=0o700)
    script(base / "k3ctl", f'exec {sys.executable} -m k3ctl "$@"\n')
    env = {}
    if engine_python == "fake":
        env["K3CTL_ENGINE_PYTHON"] = str(
            script(
                base / "python",
                f"""case "$*" in
  *importlib.metadata*) echo '{FACTS}' ;;
  *runtime.tiny*) eval "out=\\${{$#}}"; mkdir -p "$out"; echo '{{}}' > "$out/config.json" ;;
  *) exec {sys.executable} {FAKE} "$@" ;;
esac
""",
            )
        )
    made = Lab(base, env)
    try:
        yield made.start(TRAYS)
    finally:
        made.stop()
        made.remove()


@pytest.fixture
def operator(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A terminal whose ssh reaches the trays; every cable is in, and nothing of an earlier test is left."""
    tools = tmp_path / "bin"
    tools.mkdir()
    script(tools / "ssh", f'exec /usr/bin/ssh -F {lab.config} "$@"\n')
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("K3CTL_STATE_DIR", str(tmp_path / "state"))
    yield lab
    lab.mend()
