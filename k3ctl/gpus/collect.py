"""Read this host: GPUs by NVML, CUDA attributes in a child, services, IMEX, environment, host facts."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from k3ctl.gpus import cuda, nvml
from k3ctl.gpus.types import Node, NvmlSystem, Snapshot
from k3ctl.host import facts, machine, services, settings
from k3ctl.host.shell import Run, run
from k3ctl.host.types import Host, Imex
from k3ctl.host.values import Refused, known

NVML_LIMIT_S = 30.0
NO_ANSWER = Refused("Timeout", 10)
"""NVML_ERROR_TIMEOUT."""


@dataclass(frozen=True)
class Reading:
    """Everything read from this host at one moment."""

    snapshot: Snapshot
    host: Host


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


def reading(
    nv: Any = None, exec_: Run = run, *, probe: bool = False, probe_multicast: bool = False
) -> Reading:
    """The GPUs of this host and the facts beside them; ``probe`` also copies between the GPUs."""
    shot, answer = read_node(nv, exec_)
    node = shot.nodes[0]
    host = facts.collect(imex_expected=isinstance(node.imex, Imex) and bool(node.imex.channels), exec_=exec_)
    wanted = (probe or probe_multicast) and bool(node.present)
    runs = _sessions() if node.present else {}
    host = replace(
        host,
        libraries=(*((answer.library,) if answer.library else ()), *host.libraries),
        cuda_error=answer.init,
        cuda_problem=answer.error if node.present else "",
        processes=tuple(
            facts.process(gpu.index, entry.pid, entry.bytes, runs)
            for gpu in node.present
            for entry in known(gpu.processes, ())
        ),
        probe=cuda.probe(node.present, with_multicast=probe_multicast) if wanted else None,
    )
    return Reading(shot, host)


def _sessions() -> dict[int, str]:
    """Sessions of this user's live runs: every process of a run is in its reaper's."""
    from k3ctl.engine import rundir

    return {run.session: run.id for run in rundir.all_runs() if run.session and run.live()}


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
