"""GPU faults in the kernel log: ``NVRM: Xid`` lines, and "fallen off the bus" with or without a number."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from k3ctl.host.shell import Run, run
from k3ctl.host.types import Xid

LIMIT_S = 1.0
_BUS = r"(?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:[.:][0-9a-fA-F]+)?)"
_XID = re.compile(rf"NVRM: Xid \({_BUS}\): (\d+)(?:, pid=('?<?[\w ]+>?'?))?(?:, name=([^,]+))?,?\s*(.*)")
_GPU = re.compile(rf"NVRM: GPU (?:at )?{_BUS}")
_OFF_BUS = "fallen off the bus"
_TIME = re.compile(r"^\[\s*[\d.]+\]\s*")
OFF_BUS_XID = 79


def read(exec_: Run = run) -> tuple[Xid, ...] | None:
    """Faults since boot; None when this user may not read the kernel log."""
    if os.geteuid() and _restricted():
        return None
    answer = exec_(["dmesg", "--kernel", "--nopager", "--color=never"], LIMIT_S)
    return None if answer.code else parse(answer.stdout)


def _restricted() -> bool:
    try:
        with open("/proc/sys/kernel/dmesg_restrict", encoding="ascii") as file:  # noqa: PTH123 (proc)
            return file.read().strip() == "1"
    except OSError:
        return False


def parse(content: str) -> tuple[Xid, ...]:
    """Faults in kernel-log text, one per GPU, code and process, in the order of their first appearance."""
    return tuple(dict.fromkeys(_faults(content)))


def _faults(content: str) -> Iterator[Xid]:
    last_bus = ""
    numbered: set[str] = set()
    for raw in content.splitlines():
        line = _TIME.sub("", raw)
        if match := _XID.search(line):
            bus, code, pid, name, rest = match.groups()
            last_bus = bus_id(bus)
            if int(code) == OFF_BUS_XID:
                numbered.add(last_bus)
            yield Xid(
                bus_id=last_bus,
                code=int(code),
                pid=int(pid) if pid and pid.isdigit() else None,
                process=name,
                text=rest.strip(),
            )
            continue
        if match := _GPU.search(line):
            last_bus = bus_id(match.group(1))
        if "NVRM" in line and _OFF_BUS in line and last_bus not in numbered:
            yield Xid(bus_id=last_bus, text=_OFF_BUS)


def bus_id(raw: str) -> str:
    """A PCI address in NVML's form ``DDDDDDDD:BB:DD.F`` from any of the kernel's spellings."""
    parts = re.split(r"[:.]", raw)
    domain, bus, device = (int(part, 16) for part in parts[:3])
    return f"{domain:08X}:{bus:02X}:{device:02X}.0"
