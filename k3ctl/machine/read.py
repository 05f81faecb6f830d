"""Reads this machine: GPUs by NVML, CUDA's attributes in a child process, and the host around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from k3ctl.gpus import collect, cuda
from k3ctl.host import facts
from k3ctl.host.shell import Run, run
from k3ctl.host.types import Imex
from k3ctl.host.values import known
from k3ctl.machine.record import Machine


def read(
    nv: Any = None,
    exec_: Run = run,
    *,
    runs: Mapping[int, str] | None = None,
    probe: bool = False,
    probe_multicast: bool = False,
) -> Machine:
    """This machine now; ``probe`` also copies between the GPUs. Raises nothing, needs no driver.

    ``runs``: session → id of the runs whose processes shall be told by name (``engine.rundir.sessions``).
    """
    shot, answer = collect.read_node(nv, exec_)
    node = shot.nodes[0]
    host = facts.collect(imex_expected=isinstance(node.imex, Imex) and bool(node.imex.channels), exec_=exec_)
    wanted = (probe or probe_multicast) and bool(node.present)
    host = replace(
        host,
        libraries=(*((answer.library,) if answer.library else ()), *host.libraries),
        cuda_error=answer.init,
        cuda_problem=answer.error if node.present else "",
        processes=tuple(
            facts.process(gpu.index, entry.pid, entry.bytes, dict(runs or {}))
            for gpu in node.present
            for entry in known(gpu.processes, ())
        ),
        probe=cuda.probe(node.present, with_multicast=probe_multicast) if wanted else None,
    )
    return Machine(node, host)
