"""Which GPUs of a host a process sees under ``CUDA_VISIBLE_DEVICES``. Pure."""

from __future__ import annotations

from k3ctl.gpus.types import Gpu, Node
from k3ctl.host.values import known


def visible(node: Node, devices: str | None) -> tuple[Gpu, ...] | None:
    """The GPUs in the order in which the process counts them; None when ``devices`` cannot be followed.

    CUDA's reading: indices or UUIDs (or their beginning); unset means all, empty means none, and the list ends at
    the first entry that names no GPU. MIG instances are not followed. Indices are NVML's, which vLLM sets too
    (``CUDA_DEVICE_ORDER=PCI_BUS_ID``).
    """
    if devices is None:
        return node.present
    found: list[Gpu] = []
    for word in filter(None, (part.strip() for part in devices.split(","))):
        if word.startswith("MIG"):
            return None
        gpu = next((gpu for gpu in node.present if _is(gpu, word)), None)
        if gpu is None:
            break
        found.append(gpu)
    return tuple(found)


def _is(gpu: Gpu, word: str) -> bool:
    return gpu.index == int(word) if word.isdigit() else bool(known(gpu.uuid, "").startswith(word))
