"""Child program: asks ``libcuda`` through ctypes. Standalone on purpose: it imports nothing of k3ctl.

A process of its own, because CUDA calls can hang or abort on a broken driver, and because contexts must not
live in the command. It writes one JSON object per line:

    attributes   driver attributes per GPU; needs no context and takes no GPU memory
    copy         copies between every pair of GPUs, checks the bytes and measures the rate
    multicast    allocates a multicast object over all GPUs and binds memory to it

``multicast`` can take GPUs out of service on shared hosts; ``k3ctl doctor`` runs it on explicit request only.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
import time
from collections.abc import Iterator
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

ATTRIBUTES = {
    "multicast": 132,
    "fabric_handle": 128,
    "posix_fd_handle": 103,
    "gpudirect_rdma": 116,
    "dma_buf": 124,
}
"""CUdevice_attribute: MULTICAST_SUPPORTED, HANDLE_TYPE_FABRIC_SUPPORTED,
HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, GPU_DIRECT_RDMA_SUPPORTED, DMA_BUF_SUPPORTED."""

NOT_READY, ALREADY_ENABLED, OUT_OF_MEMORY = 802, 704, 2
READY_LIMIT_S = 30.0
COPY_BYTES = 256 * 2**20
COPIES = 8
SAMPLES, SAMPLE_BYTES = 64, 4096
PATTERN_BYTES = 2**20
GRANULARITY_RECOMMENDED = 1
PINNED, LOCATION_DEVICE = 1, 1


class MulticastProp(ctypes.Structure):
    """CUmulticastObjectProp_v1."""

    _fields_ = (
        ("numDevices", c_uint),
        ("size", c_size_t),
        ("handleTypes", c_uint64),
        ("flags", c_uint64),
    )


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp_v1, its nested structures flattened."""

    _fields_ = (
        ("type", c_int),
        ("requestedHandleTypes", c_int),
        ("locationType", c_int),
        ("locationId", c_int),
        ("win32HandleMetaData", c_void_p),
        ("allocFlags", ctypes.c_ubyte * 8),
    )


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDeviceCanAccessPeer": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxEnablePeerAccess": (c_void_p, c_uint),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuMemsetD8_v2": (c_uint64, ctypes.c_ubyte, c_size_t),
    "cuMemcpyPeerAsync": (c_uint64, c_void_p, c_uint64, c_void_p, c_size_t, c_void_p),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuMulticastGetGranularity": (POINTER(c_size_t), POINTER(MulticastProp), c_int),
    "cuMulticastCreate": (POINTER(c_uint64), POINTER(MulticastProp)),
    "cuMulticastAddDevice": (c_uint64, c_int),
    "cuMulticastBindMem": (c_uint64, c_size_t, c_uint64, c_size_t, c_size_t, c_uint64),
    "cuMulticastUnbind": (c_uint64, c_int, c_size_t, c_size_t),
    "cuMemCreate": (POINTER(c_uint64), c_size_t, POINTER(AllocationProp), c_uint64),
    "cuMemRelease": (c_uint64,),
}


class CudaError(Exception):
    """A CUDA driver call returned a CUresult other than 0."""

    def __init__(self, call: str, code: int) -> None:
        meaning = " (out of memory: is an engine running?)" if code == OUT_OF_MEMORY else ""
        super().__init__(f"{call} returned {code}{meaning}")
        self.call, self.code = call, code


class Driver:
    """``libcuda`` with checked calls: ``driver("cuInit", 0)`` raises CudaError on failure."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def result(self, name: str, *args: Any) -> int:
        """Call ``name`` and return its CUresult."""
        function = getattr(self._library, name)
        if function.argtypes is None:
            function.argtypes = SIGNATURES[name]
        return int(function(*args))

    def __call__(self, name: str, *args: Any) -> None:  # noqa: D102 (the class says it)
        code = self.result(name, *args)
        if code:
            raise CudaError(name, code)

    def number(self, name: str, *args: Any) -> int:
        """The int that ``name`` writes through its first argument."""
        out = c_int()
        self(name, ctypes.byref(out), *args)
        return out.value

    def pointer(self, name: str, *args: Any) -> int:
        """The address that ``name`` writes through its first argument."""
        out = c_void_p()
        self(name, ctypes.byref(out), *args)
        return out.value or 0

    def handle(self, name: str, *args: Any) -> int:
        """The 64-bit handle that ``name`` writes through its first argument."""
        out = c_uint64()
        self(name, ctypes.byref(out), *args)
        return out.value

    def bus_id(self, device: int) -> str:
        """PCI bus id of a device."""
        text = ctypes.create_string_buffer(32)
        self("cuDeviceGetPCIBusId", text, 32, device)
        return text.value.decode("ascii", "replace")

    def devices(self) -> list[int]:
        """Device handles in CUDA's order."""
        return [self.number("cuDeviceGet", i) for i in range(self.number("cuDeviceGetCount"))]


def attributes(driver: Driver, library: str | None) -> dict[str, Any]:
    """Library path, driver version, cuInit result, and the attributes of each GPU."""
    out: dict[str, Any] = {"library": library, "driver_version": driver.number("cuDriverGetVersion")}
    out["init"] = driver.result("cuInit", 0)
    out["devices"] = [] if out["init"] else [_attributes(driver, device) for device in driver.devices()]
    return out


def _attributes(driver: Driver, device: int) -> dict[str, Any]:
    entry: dict[str, Any] = {"bus_id": driver.bus_id(device)}
    for name, number in ATTRIBUTES.items():
        value = c_int()
        failed = driver.result("cuDeviceGetAttribute", ctypes.byref(value), number, device)
        entry[name] = 0 if failed else value.value
    return entry


def when_ready(driver: Driver, name: str, *args: Any, limit_s: float = READY_LIMIT_S) -> None:
    """Call ``name``; while the fabric manager is busy (802) try again with a growing pause."""
    deadline, pause = time.monotonic() + limit_s, 0.5
    while (code := driver.result(name, *args)) == NOT_READY and time.monotonic() + pause < deadline:
        time.sleep(pause)
        pause = min(pause * 2, 5.0)
    if code:
        raise CudaError(name, code)


class Side:
    """One GPU during the copy probe: its context and a source and a target buffer."""

    def __init__(self, driver: Driver, device: int, size: int, pattern: bytes) -> None:
        self.driver, self.device, self.size = driver, device, size
        self.bus_id = driver.bus_id(device)
        self.context = driver.pointer("cuDevicePrimaryCtxRetain", device)
        self.activate()
        self.source = driver.handle("cuMemAlloc_v2", size)
        self.target = driver.handle("cuMemAlloc_v2", size)
        for offset in range(0, size, len(pattern)):
            driver("cuMemcpyHtoD_v2", self.source + offset, pattern, min(len(pattern), size - offset))

    def activate(self) -> None:
        """Make this GPU's context current."""
        self.driver("cuCtxSetCurrent", self.context)

    def holds(self, pattern: bytes) -> bool:
        """Whether samples over the whole target buffer are the pattern."""
        self.activate()
        seen = ctypes.create_string_buffer(SAMPLE_BYTES)
        for sample in range(SAMPLES):
            offset = sample * (self.size - SAMPLE_BYTES) // (SAMPLES - 1) // 16 * 16
            self.driver("cuMemcpyDtoH_v2", seen, self.target + offset, SAMPLE_BYTES)
            start = offset % len(pattern)
            if seen.raw != (pattern + pattern)[start : start + SAMPLE_BYTES]:
                return False
        return True


def copy(driver: Driver, size: int = COPY_BYTES, copies: int = COPIES) -> Iterator[dict[str, Any]]:
    """One line per ordered pair of GPUs: peer access, rate in GB/s (10⁹ bytes), whether the bytes arrived."""
    when_ready(driver, "cuInit", 0)
    pattern = random.Random(3).randbytes(PATTERN_BYTES)
    sides = []
    for device in driver.devices():
        try:
            sides.append(Side(driver, device, size, pattern))
        except CudaError as error:
            bus_id = driver.bus_id(device)
            yield {"from": bus_id, "to": bus_id, "error": str(error)}
    for a in sides:
        for b in sides:
            if a is b:
                continue
            yield {"from": a.bus_id, "to": b.bus_id} | _copy_pair(driver, a, b, copies, pattern)


def _copy_pair(driver: Driver, a: Side, b: Side, copies: int, pattern: bytes) -> dict[str, Any]:
    try:
        peer = driver.number("cuDeviceCanAccessPeer", a.device, b.device)
        a.activate()
        if peer:
            code = driver.result("cuCtxEnablePeerAccess", b.context, 0)
            if code not in (0, ALREADY_ENABLED):
                raise CudaError("cuCtxEnablePeerAccess", code)
        b.activate()
        driver("cuMemsetD8_v2", b.target, 0, b.size)
        a.activate()
        seconds = _timed(driver, a, b, copies)
        return {
            "peer": bool(peer),
            "gb_s": round(copies * a.size / seconds / 1e9, 1),
            "correct": b.holds(pattern),
        }
    except CudaError as error:
        return {"error": str(error)}


def _timed(driver: Driver, a: Side, b: Side, copies: int) -> float:
    """Seconds for ``copies`` copies after one that warms up, by CUDA events on GPU ``a``."""
    begin, end = driver.pointer("cuEventCreate", 0), driver.pointer("cuEventCreate", 0)
    for number in range(copies + 1):
        if number == 1:
            driver("cuEventRecord", begin, None)
        driver("cuMemcpyPeerAsync", b.target, b.context, a.source, a.context, a.size, None)
    driver("cuEventRecord", end, None)
    driver("cuEventSynchronize", end)
    elapsed_ms = c_float()
    driver("cuEventElapsedTime", ctypes.byref(elapsed_ms), begin, end)
    return max(elapsed_ms.value, 1e-3) / 1e3


def multicast(driver: Driver) -> dict[str, Any]:
    """Create a multicast object over all GPUs, bind memory of each, take it apart again."""
    when_ready(driver, "cuInit", 0)
    devices = driver.devices()
    contexts = [driver.pointer("cuDevicePrimaryCtxRetain", device) for device in devices]
    prop = MulticastProp(numDevices=len(devices), size=0, handleTypes=0, flags=0)
    size = c_size_t()
    driver("cuCtxSetCurrent", contexts[0])
    driver("cuMulticastGetGranularity", ctypes.byref(size), ctypes.byref(prop), GRANULARITY_RECOMMENDED)
    prop.size = size.value
    team = driver.handle("cuMulticastCreate", ctypes.byref(prop))
    memories: list[tuple[int, int]] = []
    try:
        for device in devices:
            driver("cuMulticastAddDevice", team, device)
        for device, context in zip(devices, contexts, strict=True):
            driver("cuCtxSetCurrent", context)
            memories.append((device, _device_memory(driver, device, prop.size)))
            when_ready(driver, "cuMulticastBindMem", team, 0, memories[-1][1], 0, prop.size, 0)
        return {"multicast": "ok", "gpus": len(devices), "bytes": prop.size}
    finally:
        for device, memory in memories:
            driver.result("cuMulticastUnbind", team, device, 0, prop.size)
            driver.result("cuMemRelease", memory)
        driver.result("cuMemRelease", team)


def _device_memory(driver: Driver, device: int, size: int) -> int:
    prop = AllocationProp(type=PINNED, locationType=LOCATION_DEVICE, locationId=device)
    return driver.handle("cuMemCreate", size, ctypes.byref(prop), 0)


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


def write(line: dict[str, Any]) -> None:
    """One JSON line, at once: what was written before a kill still counts."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(action: str) -> int:
    """Run one action; a CUDA failure is a line with ``error`` and ``code``."""
    try:
        driver = Driver(ctypes.CDLL("libcuda.so.1"))
    except OSError as error:
        write({"library": None, "error": str(error)})
        return 0
    try:
        if action == "attributes":
            write(attributes(driver, loaded_path("libcuda.so")))
        elif action == "copy":
            for line in copy(driver):
                write(line)
            write({"done": True})
        elif action == "multicast":
            write(multicast(driver))
    except CudaError as error:
        write({"error": str(error), "code": error.code})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
