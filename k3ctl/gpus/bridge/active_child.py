"""The measurements of ``k3ctl doctor --active``, in the engine's Python: ``active_child.py ACTION …``.

Executed by path and never imported by k3ctl: it needs torch, as the engine does. One JSON object per line:

    triad SECONDS       memory bandwidth of every visible GPU at once: a = b + s·c, far larger than any cache
    allreduce LIMIT_S   one process per visible GPU, NCCL: rate and sum of an all-reduce

NVLink multicast is never used: k3ctl forbids it in this process's environment, and this program refuses to start NCCL
where it is not forbidden. ``--device cpu`` measures the processor and Gloo instead, so that the program can be tried
without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

SCALAR, B, C = 3.0, 1.5, 2.0
BATCH_S = 0.05
"""Launches are timed in batches of about this length: starting and waiting then cost nothing."""
FORBIDDEN = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


def write(line: dict[str, Any]) -> None:
    """One JSON line, at once: what was written before a kill still counts."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def figures(rate: float) -> float:
    """Four figures of a rate, however small."""
    return float(f"{rate:.4g}")


def devices(torch: Any, kind: str, count: int) -> list[Any]:
    """The devices to measure."""
    found = torch.cuda.device_count() if kind == "cuda" else count
    return [torch.device(kind, index) if kind == "cuda" else torch.device(kind) for index in range(found)]


def wait(torch: Any, device: Any) -> None:
    """Until everything launched on the device has run."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def identity(torch: Any, device: Any, index: int) -> dict[str, Any]:
    """What names a device."""
    if device.type != "cuda":
        return {"device": index, "name": "cpu", "uuid": ""}
    properties = torch.cuda.get_device_properties(device)
    return {"device": index, "name": properties.name, "uuid": str(getattr(properties, "uuid", ""))}


def triad(torch: Any, kind: str, seconds: float, count: int, size: int) -> None:
    """Measure all devices at the same time, as they work when they serve: one thread each."""
    threads = [
        threading.Thread(target=_triad_line, args=(torch, device, index, seconds, size))
        for index, device in enumerate(devices(torch, kind, count))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _triad_line(torch: Any, device: Any, index: int, seconds: float, size: int) -> None:
    line: dict[str, Any] = {"triad": True, "device": index}
    try:
        line |= identity(torch, device, index)
        line |= _triad(torch, device, seconds, size)
    except Exception as error:
        line["error"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    write(line)


def _triad(torch: Any, device: Any, seconds: float, size: int) -> dict[str, Any]:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        size = min(size, free // 8)
    elements = size // 4
    a = torch.empty(elements, dtype=torch.float32, device=device)
    b = torch.full_like(a, B)
    c = torch.full_like(a, C)

    def batch(launches: int) -> float:
        wait(torch, device)
        begin = time.perf_counter()
        for _ in range(launches):
            torch.add(b, c, alpha=SCALAR, out=a)
        wait(torch, device)
        return time.perf_counter() - begin

    batch(3)
    launches = max(1, round(BATCH_S / max(batch(3) / 3, 1e-6)))
    moved, end = 3 * 4 * elements, time.monotonic() + seconds
    rates: list[float] = []
    while not rates or time.monotonic() < end:
        rates.append(launches * moved / batch(launches) / 1e9)
    return {
        "gb_s": figures(max(rates)),
        "median_gb_s": figures(statistics.median(rates)),
        "buffer_bytes": 4 * elements,
        "batches": len(rates),
        "correct": bool((a == B + SCALAR * C).all().item()),
    }


def allreduce(asked: argparse.Namespace) -> None:
    """Start one rank per device and pass on what rank 0 says."""
    import torch

    ranks = len(devices(torch, asked.device, asked.count))
    if ranks < 2:
        write({"collective": True, "ranks": ranks, "error": "one GPU is visible: nothing to reduce over"})
        return
    with tempfile.TemporaryDirectory() as directory:
        argv = [sys.executable, "-P", __file__, "rank", str(asked.limit), "--device", asked.device]
        argv += ["--bytes", str(asked.bytes), "--warm", str(asked.warm), "--timed", str(asked.timed)]
        store = str(Path(directory) / "store")
        children = [
            subprocess.Popen(argv, env={**os.environ, "K3_ACTIVE_RANK": f"{rank}/{ranks}/{store}"})
            for rank in range(ranks)
        ]
        failed = [child.wait() for child in children]
    if any(failed):
        write({"collective": True, "ranks": ranks, "error": f"ranks ended with status {failed}"})


def rank(asked: argparse.Namespace) -> None:
    """One rank of the all-reduce."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    kind, size = asked.device, asked.bytes
    me, ranks, store = os.environ["K3_ACTIVE_RANK"].split("/", 2)
    index, world = int(me), int(ranks)
    device = torch.device(kind, index) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        init_method=f"file://{store}",
        rank=index,
        world_size=world,
        timeout=timedelta(seconds=asked.limit),
    )
    check = torch.full((size // 4,), float(index + 1), dtype=torch.float32, device=device)
    dist.all_reduce(check)
    correct = bool((check == world * (world + 1) / 2).all().item())
    data = torch.zeros_like(check)
    for _ in range(asked.warm):
        dist.all_reduce(data)
    wait(torch, device)
    begin = time.perf_counter()
    for _ in range(asked.timed):
        dist.all_reduce(data)
    wait(torch, device)
    rate = asked.timed * data.numel() * 4 / (time.perf_counter() - begin) / 1e9
    line = {"ranks": world, "bytes": data.numel() * 4, "algorithm_gb_s": figures(rate)}
    line["bus_gb_s"] = figures(rate * 2 * (world - 1) / world)
    line["nccl"] = ".".join(map(str, torch.cuda.nccl.version())) if kind == "cuda" else ""
    agreed = [None] * world
    dist.all_gather_object(agreed, correct)
    if index == 0:
        write({"collective": True, **line, "correct": all(agreed)})
    dist.destroy_process_group()


def main(arguments: list[str]) -> int:
    """Run one action; a failure is a line with ``error``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("triad", "allreduce", "rank"))
    parser.add_argument("limit", type=float)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--warm", type=int, default=1)
    parser.add_argument("--timed", type=int, default=1)
    asked = parser.parse_args(arguments)
    open_ = [name for name, value in FORBIDDEN.items() if os.environ.get(name) != value]
    if open_ and asked.device == "cuda":
        write({"error": f"NVLink multicast is not forbidden here: {', '.join(open_)}"})
        return 0
    # the kernel ends this process and every rank by itself, should whoever waits be gone
    signal.alarm(max(1, int(asked.limit) + 60))
    try:
        import torch
    except ImportError as error:
        write({"error": f"the engine's Python has no torch: {error}"})
        return 0
    if asked.action == "rank":
        rank(asked)
        return 0
    write({"torch": str(torch.__version__), "cuda": str(torch.version.cuda or "")})
    if asked.device == "cuda" and not torch.cuda.is_available():
        write({"error": "torch sees no GPU"})
        return 0
    if asked.action == "triad":
        triad(torch, asked.device, asked.limit, asked.count, asked.bytes)
    else:
        allreduce(asked)
    write({"done": True})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
