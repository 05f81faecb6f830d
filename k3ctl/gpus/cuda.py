"""The CUDA driver, asked in a child process with a time limit: attributes, and the probes on request."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3ctl.gpus import cuda_child
from k3ctl.gpus.types import CudaDevice, Gpu
from k3ctl.host.kernel_log import bus_id
from k3ctl.host.types import Copy, Library, Probe
from k3ctl.host.values import known

ATTRIBUTES_LIMIT_S = 10.0
COPY_LIMIT_S = 120.0
MULTICAST_LIMIT_S = 60.0
_VERSION = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)*)$")
_CUDA_FILE = Path(cuda_child.__file__)


@dataclass(frozen=True)
class CudaAnswer:
    """The driver's answer. ``init`` is cuInit's CUresult; ``error`` says why the driver was not reached."""

    library: Library | None = None
    init: int | None = None
    devices: tuple[Mapping[str, Any], ...] = ()
    error: str = ""


def start(action: str = "attributes", program: Path = _CUDA_FILE) -> subprocess.Popen[str]:
    """Start the child. All GPUs are asked, whatever CUDA_VISIBLE_DEVICES says: NVML counts them all, too."""
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return subprocess.Popen(
        [sys.executable, "-I", str(program), action],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=env,
    )


def finish(child: subprocess.Popen[str], limit_s: float = ATTRIBUTES_LIMIT_S) -> CudaAnswer:
    """The attributes, or an answer with ``error`` when the child failed or ran past the limit."""
    lines, error = _lines(child, limit_s)
    data = lines[0] if lines else {}
    path = data.get("library")
    if not path:
        return CudaAnswer(error=error or str(data.get("error") or "no answer"))
    match = _VERSION.search(str(Path(path).resolve()))
    library = Library("cuda", path, match.group(1) if match else None, "loader")
    return CudaAnswer(library, data.get("init"), tuple(data.get("devices", ())))


def by_index(devices: Sequence[Mapping[str, Any]], gpus: Sequence[Gpu]) -> tuple[CudaDevice, ...]:
    """The attributes under NVML's indices, matched by PCI bus id (CUDA orders devices its own way)."""
    index = _indices(gpus)
    out = []
    for device in devices:
        found = index.get(bus_id(str(device["bus_id"])))
        if found is not None:
            out.append(CudaDevice(index=found, **{name: int(device[name]) for name in cuda_child.ATTRIBUTES}))
    return tuple(sorted(out, key=lambda d: d.index))


def probe(gpus: Sequence[Gpu], *, with_multicast: bool, limit_s: float = COPY_LIMIT_S) -> Probe:
    """Copy between every pair of GPUs in a child; on explicit request also allocate multicast memory.

    What the child reported before it failed or ran past the limit still counts.
    """
    lines, error = _lines(start("copy"), limit_s)
    error = error or next(
        (str(line["error"]) for line in lines if "error" in line and "from" not in line), ""
    )
    if not error and not any(line.get("done") for line in lines):
        error = "the copy probe ended early"
    index = _indices(gpus)
    copies = tuple(_copy(line, index) for line in lines if "from" in line)
    multicast = _multicast() if with_multicast else None
    return Probe(copies=copies, error=error, multicast=multicast)


def _multicast() -> str:
    lines, error = _lines(start("multicast"), MULTICAST_LIMIT_S)
    if error:
        return error
    line = lines[0] if lines else {"error": "no answer"}
    return str(line.get("multicast") or line.get("error"))


def _copy(line: Mapping[str, Any], index: Mapping[str, int]) -> Copy:
    return Copy(
        source=index.get(bus_id(str(line["from"])), -1),
        target=index.get(bus_id(str(line["to"])), -1),
        peer=line.get("peer"),
        gb_s=line.get("gb_s"),
        correct=line.get("correct"),
        error=str(line.get("error", "")),
    )


def _indices(gpus: Sequence[Gpu]) -> dict[str, int]:
    return {bus_id(bus): gpu.index for gpu in gpus if (bus := known(gpu.pci.bus_id, ""))}


def _lines(child: subprocess.Popen[str], limit_s: float) -> tuple[list[dict[str, Any]], str]:
    """The child's JSON lines, and an error text when it was killed at the limit or died."""
    error = ""
    try:
        stdout, _ = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        stdout, _ = child.communicate()
        error = f"no end within {limit_s:g} s"
    out = []
    for line in stdout.splitlines():
        try:
            out.append(json.loads(line))
        except ValueError:
            continue  # cut off by the kill
    if child.returncode and not error:
        error = f"the child ended with status {child.returncode}"
    return out, error
