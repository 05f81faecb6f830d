"""An ssh that runs the command on this machine, with a state directory for each host: hosts without a network."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests" / "engine" / "fake_engine.py"
FACTS = '{"python":[3,11,7],"vllm":"VERSION","torch":"2.13.0","runtime":true,"plugins":["lora"]}'

SSH = """
while [ "$1" != "--" ]; do shift; done
host="$2" command="$3"
say() { echo "$1" >&2; exit 255; }
case "$host" in
  off*) say "ssh: connect to host $host port 22: Connection refused" ;;
  nowhere*) say "ssh: Could not resolve hostname $host: Name or service not known" ;;
  stranger*) say "Host key verification failed." ;;
  locked*) say "root@$host: Permission denied (publickey)." ;;
  bare*) echo "sh: 1: k3ctl: not found" >&2; exit 127 ;;
  old*) echo "error: No such command 'member'." >&2; exit 2 ;;
  mute*) exec sleep 60 ;;
  chatty*) echo "Welcome to $host" ;;
esac
export K3CTL_STATE_DIR="$HOSTS/$host" SSH_CONNECTION="127.0.0.1 50000 127.0.0.1 22"
case "$host" in
  other*) export K3CTL_ENGINE_PYTHON="$HOSTS/python-other" ;;
  shell*) export VLLM_NO_USAGE_STATS=0 ;;
  twin*) export K3CTL_STATE_DIR="$HOSTS/twin" ;;
  far*) export SSH_CONNECTION="192.0.2.7 50000 192.0.2.9 22" ;;
esac
exec sh -c "$command"
"""


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def engine_python(path: Path, version: str = "0.33.0") -> Path:
    return script(
        path,
        f"""case "$*" in
  *importlib.metadata*) echo '{FACTS.replace("VERSION", version)}' ;;
  *runtime.tiny*) eval "out=\\${{$#}}"; mkdir -p "$out"; echo '{{}}' > "$out/config.json" ;;
  *) exec {sys.executable} {FAKE} "$@" ;;
esac
""",
    )


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the hosts' state directories; the operator's own is ``operator``."""
    folder = tmp_path / "hosts"
    folder.mkdir()
    tools = tmp_path / "bin"
    tools.mkdir()
    script(tools / "ssh", SSH)
    script(tools / "k3ctl", f'exec {sys.executable} -m k3ctl "$@"\n')
    engine_python(folder / "python-other", "0.33.1")
    monkeypatch.setenv("HOSTS", str(folder))
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("K3CTL_ENGINE_PYTHON", str(engine_python(folder / "python")))
    monkeypatch.setenv("K3CTL_STATE_DIR", str(folder / "operator"))
    return folder
