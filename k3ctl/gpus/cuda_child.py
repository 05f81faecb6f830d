"""Child program: CUDA driver attributes per GPU, as one JSON line. Needs no context and takes no GPU memory.

A process of its own, because ``cuInit`` can hang or abort on a broken driver. Runs ``libcuda`` through
ctypes, so no CUDA Python package is needed; imports nothing of k3ctl.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

ATTRIBUTES = {
    "multicast": 132,
    "fabric_handle": 128,
    "posix_fd_handle": 103,
    "gpudirect_rdma": 116,
    "dma_buf": 124,
}
"""CUdevice_attribute numbers: MULTICAST_SUPPORTED, HANDLE_TYPE_FABRIC_SUPPORTED,
HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, GPU_DIRECT_RDMA_SUPPORTED, DMA_BUF_SUPPORTED."""


def attributes(cuda: ctypes.CDLL) -> list[dict[str, object]]:
    """One entry per GPU: its PCI bus id and the attributes."""
    count = ctypes.c_int()
    if cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    out: list[dict[str, object]] = []
    for ordinal in range(count.value):
        device = ctypes.c_int()
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal):
            continue
        bus = ctypes.create_string_buffer(32)
        cuda.cuDeviceGetPCIBusId(bus, 32, device)
        entry: dict[str, object] = {"bus_id": bus.value.decode("ascii", "replace")}
        for name, number in ATTRIBUTES.items():
            value = ctypes.c_int()
            failed = cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
            entry[name] = 0 if failed else value.value
        out.append(entry)
    return out


def loaded_path(stem: str) -> str | None:
    """Path of the mapped library whose file name starts with ``stem``."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in maps.splitlines():
        path = line.partition("/")[2]
        if path.rpartition("/")[2].startswith(stem):
            return "/" + path
    return None


def main() -> int:
    """Print one JSON object: library, driver version, cuInit result, devices."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        json.dump({"library": None, "error": str(error)}, sys.stdout)
        return 0
    version = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    result = cuda.cuInit(0)
    json.dump(
        {
            "library": loaded_path("libcuda.so"),
            "driver_version": version.value,
            "init": result,
            "devices": attributes(cuda) if result == 0 else [],
        },
        sys.stdout,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
