"""Saves what is only there while the engine hangs: stacks, thread states, the end of the log.

Python stacks need py-spy; without it the kernel's view of every thread is kept. Standard library only.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from k3ctl.engine import logs
from k3ctl.engine.procs import Process, command_line

TAIL_BYTES = 256 << 10
DUMP_S = 20.0


def save(run_dir: Path, members: Iterable[Process], python: str, kind: str) -> tuple[str, ...]:
    """Write a directory of evidence below ``run_dir`` and return its files."""
    out = run_dir / "evidence" / f"{time.strftime('%Y%m%d-%H%M%S')}-{kind}"
    files: list[Path] = []
    with contextlib.suppress(OSError):
        out.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.append(_tail(run_dir / "engine.log", out / "engine-tail.log"))
        spy = _py_spy(python)
        for process in members:
            files.append(_threads(process, out / f"threads-{process.pid}.txt"))
            if spy is not None and "python" in _program(process):
                files.append(_stacks(spy, process, out / f"stacks-{process.pid}.txt"))
    return tuple(str(path) for path in files if path.exists())


def _tail(log: Path, out: Path) -> Path:
    with contextlib.suppress(OSError):
        out.write_bytes(logs.tail(log, TAIL_BYTES))
    return out


def _threads(process: Process, out: Path) -> Path:
    """One line per thread: state, the kernel function it waits in, its name."""
    lines = [f"{process.name} (pid {process.pid}): {command_line(process.pid)}"]
    with contextlib.suppress(OSError):
        for task in sorted(Path(f"/proc/{process.pid}/task").iterdir(), key=lambda path: int(path.name)):
            with contextlib.suppress(OSError, IndexError):
                state = (task / "stat").read_text().rpartition(")")[2].split()[0]
                waits_in = (task / "wchan").read_text().strip() or "-"
                lines.append(f"  {task.name:>8} {state} {waits_in:<28} {(task / 'comm').read_text().strip()}")
    out.write_text("\n".join(lines) + "\n")
    return out


def _stacks(spy: str, process: Process, out: Path) -> Path:
    command = [spy, "dump", "--nonblocking", "--pid", str(process.pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DUMP_S, check=False)
        out.write_text(done.stdout or done.stderr)
    except subprocess.TimeoutExpired:
        out.write_text(f"py-spy gave no answer within {DUMP_S:.0f} s\n")
    return out


def _py_spy(python: str) -> str | None:
    """Beside the engine's Python, else on PATH."""
    beside = Path(python).parent / "py-spy"
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def _program(process: Process) -> str:
    """vLLM renames its processes, so the program is asked of the kernel."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process.pid}/exe").readlink().name
    return process.name
