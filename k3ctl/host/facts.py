"""Collect the host facts (``k3ctl.host/1``). Slow tools run side by side, each under its own time limit."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

from k3ctl import __version__
from k3ctl.host import imex_domain, kernel_log, limits, machine, network, packages, settings, storage
from k3ctl.host.shell import Run, run
from k3ctl.host.types import Host, Process


def collect(env: Mapping[str, str] | None = None, *, imex_expected: bool = False, exec_: Run = run) -> Host:
    """Facts about this host, without its GPUs. ``imex_expected`` asks the IMEX service for its domain."""
    env = os.environ if env is None else env
    hostname = socket.gethostname()
    with ThreadPoolExecutor(max_workers=3) as pool:
        addresses = pool.submit(network.addresses, hostname)
        faults = pool.submit(kernel_log.read, exec_)
        domain = pool.submit(imex_domain.read, exec_) if imex_expected else None
        installed = packages.packages()
        total, available = machine.memory_bytes()
        cgroup_memory, cgroup_cpus = machine.cgroup_limits()
        return Host(
            hostname=hostname,
            collected_at=round(time.time(), 3),
            memory_total_bytes=total,
            memory_available_bytes=available,
            cgroup_memory_bytes=cgroup_memory,
            cgroup_cpus=cgroup_cpus,
            container=machine.container(),
            memlock_bytes=limits.memlock_bytes(),
            nofile=limits.nofile(),
            shm_bytes=storage.shm_bytes(),
            disks=storage.disks(env),
            ports=network.ports(),
            settings=settings.settings(env),
            packages=installed,
            libraries=packages.nccl(env, installed),
            python=platform.python_version(),
            k3ctl=__version__,
            addresses=addresses.result(),
            xids=faults.result(),
            imex_domain=domain.result() if domain else None,
        )


def process(gpu: int, pid: int, size: int | None, runs: Mapping[int, str] = MappingProxyType({})) -> Process:
    """A process on a GPU, named from /proc; nameless when it lives in another PID namespace.

    ``runs``: session → id of the live runs of ``k3ctl serve``.
    """
    base = Path("/proc") / str(pid)
    command = (machine.text(base / "cmdline") or "").split("\0")[0].strip() or (
        machine.text(base / "comm") or ""
    ).strip()
    parent = None
    for line in (machine.text(base / "status") or "").splitlines():
        key, _, value = line.partition(":")
        if key == "PPid":
            parent = int(value)
    # after the command's name, which may hold anything: state, parent, group, session
    after = (machine.text(base / "stat") or "").rpartition(")")[2].split()
    run = runs.get(int(after[3])) if len(after) > 3 else None
    return Process(gpu=gpu, pid=pid, name=command or None, bytes=size, parent=parent, run=run)
