"""What one worker runs on and with: the marks by which ranks of one deployment can be told to differ.

Everything is read from the process itself. Values of variables are stated by digest, so that no page holds a secret;
two ranks with the same digest had the same value.
"""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import sys
from typing import Any

PREFIXES = ("VLLM_", "K3_", "NCCL_", "CUDA_", "TORCH_", "PYTORCH_", "NVSHMEM_", "UCX_", "OMP_", "FLASHINFER_")
PER_RANK = frozenset(
    {"CUDA_VISIBLE_DEVICES", "K3_WITNESS_DIR", "VLLM_DP_RANK", "VLLM_DP_RANK_LOCAL", "NCCL_IB_HCA"}
)
"""Variables that differ from rank to rank, or from host to host, by nature."""
LEFT_OUT = (
    "_PORT",
    "_ADDR",
    "HOST_IP",
    "_HOST",
    "_PATH",
    "_DIR",
    "_ID",
    "_KEY",
    "_TOKEN",
    "_SECRET",
    "_PASSWORD",
)
"""Ends of names of addresses and secrets: the first differ by nature, of the second not even a digest is stated."""


def fingerprint() -> dict[str, Any]:
    """Marks of this process; a mark that cannot be read is left out.

    ``host``: digest of the host's name. ``cpus``: processors that it may use. ``env``: digests by variable.
    """
    marks: dict[str, Any] = {
        "host": digest(socket.gethostname()),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "cpus": ranges(sorted(os.sched_getaffinity(0))),
        "cpu_count": len(os.sched_getaffinity(0)),
        "env": {
            name: digest(value)
            for name, value in sorted(os.environ.items())
            if name.startswith(PREFIXES) and name not in PER_RANK and not name.endswith(LEFT_OUT)
        },
    }
    return marks | _torch()


def _torch() -> dict[str, Any]:
    """Versions and the GPU, when the worker has loaded torch; reading them starts nothing."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    marks: dict[str, Any] = {"torch": str(torch.__version__), "threads": torch.get_num_threads()}
    if torch.version.cuda:
        marks["cuda"] = str(torch.version.cuda)
    if torch.cuda.is_initialized():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        marks |= {
            "gpu": properties.name,
            "gpu_bytes": int(properties.total_memory),
            "gpu_sms": int(properties.multi_processor_count),
            "gpu_uuid": digest(str(getattr(properties, "uuid", ""))),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        }
    return marks


def digest(text: str) -> str:
    """Twelve digits that tell equal from different."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def ranges(numbers: list[int]) -> str:
    """``0-3,8`` for 0, 1, 2, 3, 8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
