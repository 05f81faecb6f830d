"""systemd units, IMEX devices and RDMA ports of this host."""

from __future__ import annotations

import re
from pathlib import Path

from k3ctl.host.machine import ROOT, text
from k3ctl.host.shell import Run, run
from k3ctl.host.types import Imex, Nic, Service

UNITS = ("nvidia-fabricmanager", "nvidia-imex", "nvidia-persistenced")
OPTIONAL_UNITS = ("nvlsm",)
ABSENT = Service(load="not-found", active="inactive")
TOOL_LIMIT_S = 1.5
_VERSION = re.compile(r"\b(\d{3}\.\d+(?:\.\d+)?)\b")


def services(exec_: Run = run) -> dict[str, Service]:
    """Load and active state of the NVIDIA units; a host without systemd has none of them."""
    names = [*UNITS, *OPTIONAL_UNITS]
    argv = ["systemctl", "show", "--property=Id,LoadState,ActiveState", *(f"{n}.service" for n in names)]
    out = dict.fromkeys(UNITS, ABSENT)
    for block in exec_(argv, TOOL_LIMIT_S).stdout.split("\n\n"):
        fields = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        name = fields.get("Id", "").removesuffix(".service")
        if name in UNITS or (name in OPTIONAL_UNITS and fields.get("LoadState") == "loaded"):
            out[name] = Service(
                load=fields.get("LoadState", "unknown"), active=fields.get("ActiveState", "unknown")
            )
    manager = out["nvidia-fabricmanager"]
    if manager.load == "loaded" or manager.active == "active":
        out["nvidia-fabricmanager"] = Service(manager.load, manager.active, _manager_version(exec_))
    return out


def _manager_version(exec_: Run) -> str | None:
    answer = exec_(["nv-fabricmanager", "--version"], TOOL_LIMIT_S)
    match = _VERSION.search(answer.stdout + answer.stderr)
    return match.group(1) if match else None


def imex(root: Path = ROOT, exec_: Run = run) -> Imex:
    """IMEX channel devices, their major number, and ``nvidia-imex-ctl -q`` where the tool exists."""
    channels = sorted(
        int(path.name.removeprefix("channel"))
        for path in (root / "dev/nvidia-caps-imex-channels").glob("channel*")
        if path.name.removeprefix("channel").isdigit()
    )
    major = None
    for line in (text(root / "proc/devices") or "").splitlines():
        number, _, name = line.strip().partition(" ")
        if name == "nvidia-caps-imex-channels" and number.isdigit():
            major = int(number)
    query = None
    if channels or major is not None:
        answer = exec_(["nvidia-imex-ctl", "-q"], TOOL_LIMIT_S)
        query = answer.stdout.strip() or None if answer.code == 0 else None
    return Imex(channels=tuple(channels), proc_devices_major=major, ctl_query=query)


def nics(root: Path = ROOT) -> tuple[Nic, ...]:
    """RDMA ports from sysfs."""
    out = []
    for device in sorted((root / "sys/class/infiniband").glob("*")):
        numa = (text(device / "device/numa_node") or "-1").strip()
        for port in sorted((device / "ports").glob("*")):
            state = (text(port / "state") or "").partition(":")[2].strip()
            rate = (text(port / "rate") or "0").split()
            out.append(
                Nic(
                    name=device.name,
                    numa=int(numa) if numa.lstrip("-").isdigit() else -1,
                    link_layer=(text(port / "link_layer") or "").strip(),
                    rate_gbps=int(float(rate[0])) if rate else 0,
                    state=state,
                )
            )
    return tuple(out)
