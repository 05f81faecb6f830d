"""CPU, memory, NUMA, virtualization, container limits from /proc and /sys; ``root`` is ``/`` but in tests."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from k3ctl.host.types import Cpu, NumaNode

ROOT = Path("/")
_CONTAINER_MARKS = {".dockerenv": "docker", "run/.containerenv": "podman"}


def text(path: Path) -> str | None:
    """The text in ``path``, or None."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def cpu(root: Path = ROOT) -> Cpu:
    """Model name and logical CPU count."""
    model = "unknown"
    for line in (text(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model"):
            model = value.strip()
            break
    return Cpu(model=model, count=os.cpu_count() or 1)


def numa(root: Path = ROOT) -> tuple[NumaNode, ...]:
    """NUMA nodes with their CPUs."""
    base = root / "sys/devices/system/node"
    nodes = []
    for path in base.glob("node[0-9]*"):
        nodes.append(NumaNode(node=int(path.name[4:]), cpus=(text(path / "cpulist") or "").strip()))
    return tuple(sorted(nodes, key=lambda n: n.node))


def memory_bytes(root: Path = ROOT) -> tuple[int | None, int | None]:
    """Host memory (total, available).

    On Grace, GPU memory appears as NUMA nodes without CPUs and is part of /proc/meminfo; those nodes are left
    out of the total, and the available figure is capped by it.
    """
    info = _meminfo(text(root / "proc/meminfo") or "")
    total, available = info.get("MemTotal"), info.get("MemAvailable")
    nodes = numa(root)
    if any(not n.cpus for n in nodes):
        with_cpus = [_node_total(root, n.node) for n in nodes if n.cpus]
        sizes = [size for size in with_cpus if size is not None]
        if sizes and len(sizes) == len(with_cpus):
            total = sum(sizes)
            available = min(available, total) if available is not None else None
    return total, available


def _meminfo(content: str) -> dict[str, int]:
    out = {}
    for line in content.splitlines():
        key, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            out[key.split()[-1]] = int(words[0]) * 1024
    return out


def _node_total(root: Path, node: int) -> int | None:
    return _meminfo(text(root / f"sys/devices/system/node/node{node}/meminfo") or "").get("MemTotal")


def virtualization(root: Path = ROOT) -> str:
    """``container``, ``vm`` or ``none``."""
    if container(root):
        return "container"
    if "hypervisor" in (text(root / "proc/cpuinfo") or "").partition("flags")[2][:4000].split():
        return "vm"
    if (text(root / "sys/hypervisor/type") or "").strip():
        return "vm"
    return "none"


def container(root: Path = ROOT) -> str | None:
    """The container runtime this process is in, or None."""
    for mark, name in _CONTAINER_MARKS.items():
        if (root / mark).exists():
            return name
    if os.environ.get("KUBERNETES_SERVICE_HOST") and root == ROOT:
        return "kubernetes"
    cgroup = text(root / "proc/1/cgroup") or ""
    for word, name in (
        ("kubepods", "kubernetes"),
        ("docker", "docker"),
        ("libpod", "podman"),
        ("lxc", "lxc"),
    ):
        if word in cgroup:
            return name
    return None


def cgroup_limits(root: Path = ROOT) -> tuple[int | None, float | None]:
    """The cgroup's bounds: memory in bytes, CPUs; None where unbounded. Reads v2, then v1."""
    base = root / "sys/fs/cgroup"
    own = _own_cgroup(root)
    memory = _smallest(base, own, "memory.max", base / "memory/memory.limit_in_bytes")
    cpus = None
    for directory in _ancestors(base, own):
        quota, _, period = (text(directory / "cpu.max") or "max 100000").partition(" ")
        if quota.strip().isdigit() and period.strip().isdigit():
            share = int(quota) / int(period)
            cpus = share if cpus is None else min(cpus, share)
    return memory, cpus


def _own_cgroup(root: Path) -> str:
    for line in (text(root / "proc/self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            return line[3:].strip().lstrip("/")
    return ""


def _ancestors(base: Path, own: str) -> list[Path]:
    out, path = [base], base
    for part in Path(own).parts:
        path = path / part
        out.append(path)
    return out


def _smallest(base: Path, own: str, name: str, legacy: Path) -> int | None:
    found = []
    for path in [*(directory / name for directory in _ancestors(base, own)), legacy]:
        value = (text(path) or "").strip()
        if value.isdigit() and int(value) < 1 << 60:  # v1 writes "no limit" as a huge number
            found.append(int(value))
    return min(found, default=None)


def arch() -> str:
    """Machine architecture, for example ``aarch64``."""
    return platform.machine()


def kernel() -> str:
    """Kernel release."""
    return platform.release()
