"""CUDA driver attributes, read in a child process with a time limit."""

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
from k3ctl.host.types import Library
from k3ctl.host.values import known

LIMIT_S = 10.0
_VERSION = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)*)$")


@dataclass(frozen=True, slots=True)
class CudaAnswer:
    """The child's answer. ``init`` is cuInit's CUresult; None when the driver was not reached in time."""

    library: Library | None = None
    init: int | None = None
    devices: tuple[Mapping[str, Any], ...] = ()


def start() -> subprocess.Popen[str]:
    """Start the child; it works while NVML is read."""
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return subprocess.Popen(
        [sys.executable, "-I", cuda_child.__file__],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=env,
    )


def finish(child: subprocess.Popen[str], limit_s: float = LIMIT_S) -> CudaAnswer:
    """The child's answer, or an empty one when it failed or ran past the limit."""
    try:
        stdout, _ = child.communicate(timeout=limit_s)
        data = json.loads(stdout)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return CudaAnswer()
    except ValueError:
        return CudaAnswer()
    path = data.get("library")
    if not path:
        return CudaAnswer()
    match = _VERSION.search(str(Path(path).resolve()))
    library = Library("cuda", path, match.group(1) if match else None, "loader")
    return CudaAnswer(library, data.get("init"), tuple(data.get("devices", ())))


def by_index(devices: Sequence[Mapping[str, Any]], gpus: Sequence[Gpu]) -> tuple[CudaDevice, ...]:
    """The attributes under NVML's indices, matched by PCI bus id (CUDA orders devices its own way)."""
    index = {bus_id(bus): gpu.index for gpu in gpus if (bus := known(gpu.pci.bus_id, ""))}
    out = []
    for device in devices:
        found = index.get(bus_id(str(device["bus_id"])))
        if found is not None:
            out.append(CudaDevice(index=found, **{name: int(device[name]) for name in cuda_child.ATTRIBUTES}))
    return tuple(sorted(out, key=lambda d: d.index))
