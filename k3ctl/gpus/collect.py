"""Read the GPUs of this host: NVML, CUDA attributes in a child, and what of the host decides about them."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import Future
from typing import Any

from k3ctl.gpus import cuda, nvml
from k3ctl.gpus.types import Node, NvmlSystem, Snapshot
from k3ctl.host import machine, services, settings
from k3ctl.host.shell import Run, run
from k3ctl.host.values import Refused

NVML_LIMIT_S = 30.0
NO_ANSWER = Refused("Timeout", 10)
"""NVML_ERROR_TIMEOUT."""


def binding() -> Any:
    """The module ``pynvml`` of nvidia-ml-py, or None when it is not installed."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml if hasattr(pynvml, "nvmlInit") else None


def snapshot(nv: Any = None) -> Snapshot:
    """The GPUs of this host. Raises nothing, needs no driver, takes no GPU memory."""
    return read_node(nv)[0]


def read_node(nv: Any = None, exec_: Run = run) -> tuple[Snapshot, cuda.CudaAnswer]:
    """The one-node snapshot, and what the CUDA driver said beside it."""
    nv = binding() if nv is None else nv
    child = cuda.start() if nv is not None else None
    cpu = machine.cpu()
    system, gpus, pairs = _within_limit(nv, cpu.count)
    answer = cuda.finish(child) if child else cuda.CudaAnswer()
    total, _ = machine.memory_bytes()
    node = Node(
        hostname=socket.gethostname(),
        arch=machine.arch(),
        kernel=machine.kernel(),
        virt=machine.virtualization(),
        cpu=cpu,
        memory_kib=(total or 0) // 1024,
        numa=machine.numa(),
        nvml=system,
        services=services.services(exec_)
        if gpus or system.error is None
        else dict.fromkeys(services.UNITS, services.ABSENT),
        imex=services.imex(exec_=exec_),
        env=settings.relevant(os.environ),
        gpus=gpus,
        pairs=pairs,
        cuda=cuda.by_index(answer.devices, gpus),
        nics=services.nics(),
    )
    return Snapshot(nodes=(node,)), answer


def _within_limit(nv: Any, cpu_count: int) -> nvml.Answer:
    """``nvml.read``, given up after NVML_LIMIT_S: on a broken driver a call may never come back."""
    answer: Future[nvml.Answer] = Future()

    def work() -> None:
        try:
            answer.set_result(nvml.read(nv, cpu_count))
        except Exception as error:
            answer.set_exception(error)

    # not an executor: the interpreter would wait for its threads at exit
    threading.Thread(target=work, daemon=True).start()
    try:
        return answer.result(timeout=NVML_LIMIT_S)
    except TimeoutError:
        return NvmlSystem(error=NO_ANSWER), (), ()
