"""``k3ctl doctor --active``: measurements that use the GPUs, in a child of the engine's Python with a time limit.

Asked for, never by default, and refused while anything else may be on a GPU. The child gets the environment that
``k3ctl serve`` would use, but for NVLink multicast, which is always forbidden; what that changed is part of the result.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from k3ctl.gpus.types import Gpu, Memory
from k3ctl.host.types import Active, Collective, Triad
from k3ctl.host.values import Refused, known

CHILD = Path(__file__).parent / "bridge" / "active_child.py"
TRIAD_S = 5.0
TRIAD_BYTES = 2**30
"""Of each of the three buffers; less where an eighth of the free memory is less."""
REDUCE_BYTES = 256 * 2**20
WARM, TIMED = 5, 20
"""Reductions before and in the measurement, as NVSentinel's preflight has them."""
TRIAD_LIMIT_S = 90.0
"""Five seconds of work; the rest is for importing torch on a cold disk."""
COLLECTIVE_LIMIT_S = 150.0
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
HELD_BYTES = 2 * 2**30
"""Memory in use on a GPU above which somebody else must be on it, whoever it is."""


def refusals(gpus: Sequence[Gpu]) -> list[str]:
    """Why nothing may be measured now, one line per GPU: not idle, or not known to be."""
    lines = []
    for gpu in gpus:
        if gpu.handle is not None:
            continue
        processes, memory = gpu.processes, gpu.memory
        if isinstance(processes, Refused):
            lines.append(f"GPU {gpu.index}: who uses it cannot be read ({processes.na})")
        elif processes:
            lines.append(f"GPU {gpu.index}: in use by pid {', '.join(str(one.pid) for one in processes)}")
        elif isinstance(memory, Memory) and memory.used >= HELD_BYTES:
            lines.append(
                f"GPU {gpu.index}: {memory.used / 2**30:.1f} GiB are held, by whom is not visible here"
            )
        elif not isinstance(memory, Memory):
            lines.append(f"GPU {gpu.index}: whether its memory is free cannot be read")
    return lines


def environment(serve: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The child's environment, and what of it differs from serve's: variable → serve's value, or ``not set``."""
    changed = {
        name: serve.get(name, "not set") for name, value in NO_MULTICAST.items() if serve.get(name) != value
    }
    return {**serve, **NO_MULTICAST}, changed


def measure(
    gpus: Sequence[Gpu], serve: Mapping[str, str], *, python: str = "", child: Path = CHILD
) -> Active:
    """Measure the GPUs that a server with the environment ``serve`` would see.

    ``python``: the engine's; by default ``$K3CTL_ENGINE_PYTHON``, else the one that runs k3ctl. Raises nothing: what
    failed is said in the result, and what was measured before it still counts.
    """
    chosen = python or serve.get("K3CTL_ENGINE_PYTHON") or sys.executable
    env, changed = environment(serve)
    if shutil.which(chosen) is None:
        return Active(error=f"`{chosen}` is no program", changed=changed)
    first, problem = _lines(
        [chosen, "-P", str(child), "triad", str(TRIAD_S), "--bytes", str(TRIAD_BYTES)], env, TRIAD_LIMIT_S
    )
    error = problem or _said(first)
    second: list[dict[str, Any]] = []
    if not error:
        argv = [
            chosen,
            "-P",
            str(child),
            "allreduce",
            str(COLLECTIVE_LIMIT_S / 2),
            "--bytes",
            str(REDUCE_BYTES),
        ]
        argv += ["--warm", str(WARM), "--timed", str(TIMED)]
        second, problem = _lines(argv, env, COLLECTIVE_LIMIT_S)
        error = problem or _said(second)
    index = {known(gpu.uuid, "").removeprefix("GPU-"): gpu.index for gpu in gpus if known(gpu.uuid, "")}
    head = next((line for line in first if "torch" in line), {})
    collective = next((_collective(line) for line in second if line.get("collective")), None)
    return Active(
        triads=tuple(_triad(line, index) for line in first if line.get("triad")),
        collective=collective,
        error=error,
        torch=str(head.get("torch", "")),
        changed=changed,
    )


def _said(lines: Sequence[Mapping[str, Any]]) -> str:
    """The child's own word that it could not go on, or that it ended early."""
    for line in lines:
        if "error" in line and not line.get("triad") and not line.get("collective"):
            return str(line["error"])
    return "" if any(line.get("done") for line in lines) else "the measurement ended early"


def _triad(line: Mapping[str, Any], index: Mapping[str, int]) -> Triad:
    uuid = str(line.get("uuid", "")).removeprefix("GPU-")
    return Triad(
        gpu=index.get(uuid, -1),
        uuid=f"GPU-{uuid}" if uuid else "",
        gb_s=_number(line.get("gb_s")),
        median_gb_s=_number(line.get("median_gb_s")),
        correct=line.get("correct") if isinstance(line.get("correct"), bool) else None,
        error=str(line.get("error", "")),
    )


def _collective(line: Mapping[str, Any]) -> Collective:
    ranks, size = line.get("ranks"), line.get("bytes")
    return Collective(
        ranks=ranks if isinstance(ranks, int) else 0,
        bytes=size if isinstance(size, int) else 0,
        bus_gb_s=_number(line.get("bus_gb_s")),
        correct=line.get("correct") if isinstance(line.get("correct"), bool) else None,
        nccl=str(line.get("nccl", "")),
        error=str(line.get("error", "")),
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _lines(argv: list[str], env: Mapping[str, str], limit_s: float) -> tuple[list[dict[str, Any]], str]:
    """The child's JSON lines, and an error text when its whole group was killed at the limit, or it died."""
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=dict(env),
            start_new_session=True,
        )
    except OSError as error:
        return [], f"`{argv[0]}` cannot be started: {error.strerror or error}"
    problem = ""
    try:
        stdout, _ = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        problem = f"no end within {limit_s:g} s"
        stdout = ""
    finally:
        # its ranks too, whatever ended the wait
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    if problem:
        stdout, _ = child.communicate()
    elif child.returncode:
        problem = f"the child ended with status {child.returncode}"
    return [line for text in stdout.splitlines() if (line := _line(text)) is not None], problem


def _line(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None  # cut off by the kill
    return value if isinstance(value, dict) else None
