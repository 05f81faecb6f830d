"""The words of NVIDIA's tools as NVML's numbers; a word that is not known here is reported, not dropped."""

from __future__ import annotations

import re

from k3ctl.gpus.types import ZERO_UUID, Fabric
from k3ctl.host.values import Maybe, Refused

NOT_AVAILABLE = ("n/a", "[n/a]", "")
NOT_SUPPORTED = Refused("NotSupported", 3)
UNKNOWN_NUMBER = -1
"""Stands for a word that this k3ctl does not know."""

FABRIC_STATE = {"not supported": 0, "not started": 1, "in progress": 2, "completed": 3}
FABRIC_STATUS = {
    "success": 0,
    "insufficient resources": 23,
    "not supported": 3,
    "unknown error": 999,
    "timeout": 10,
}
HEALTH_SUMMARY = {"not supported": 0, "healthy": 1, "unhealthy": 2, "limited capacity": 3}
RECOVERY = {
    "none": 0,
    "reset": 1,
    "gpu reset": 1,
    "reboot": 2,
    "node reboot": 2,
    "drain p2p": 3,
    "drain and reset": 4,
    "recover imex domain": 5,
    "bus reset": 6,
    "system reboot": 7,
}
CLOCK_EVENTS = {
    "sw thermal slowdown": 0x20,
    "hw slowdown": 0x8,
    "hw slowdown/hw thermal slowdown": 0x40,
    "hw slowdown/hw power brake slowdown": 0x80,
    "hw thermal slowdown": 0x40,
    "hw power brake slowdown": 0x80,
}
"""Lines of nvidia-smi's clock event reasons, and NVML's bits."""
P2P_STATUS = {"OK": 0, "CNS": 1, "GNS": 2, "TNS": 3, "DR": 4, "NS": 5, "U": 6}
TOPOLOGY_LEVEL = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
CONFIGURATION = {"not supported": 0, "none": 1}

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TRUE_FALSE = {"true": 1, "false": 2}
_BANDWIDTH = {"degraded": 1, "full": 2}


def plain(text: str) -> str:
    """``text`` without terminal codes and carriage returns."""
    return _ANSI.sub("", text).replace("\r", "")


def number(table: dict[str, int], word: str, what: str, notes: list[str]) -> int:
    """The number for ``word``; UNKNOWN_NUMBER, and a note with the word, when the table lacks it."""
    key = word.strip().lower()
    if key in table:
        return table[key]
    notes.append(f"{what}: unknown word `{word.strip()[:60]}`")
    return UNKNOWN_NUMBER


def fabric(fields: dict[str, str], notes: list[str]) -> Maybe[Fabric]:
    """The ``Fabric`` block of ``nvidia-smi -q``, keys in lower case."""
    state = fields.get("state", "")
    if state.lower() in NOT_AVAILABLE:
        return NOT_SUPPORTED
    status, clique = fields.get("status", "N/A"), fields.get("cliqueid", "N/A")
    uuid = fields.get("clusteruuid", "N/A")
    summary = fields.get("summary", "N/A")
    return Fabric(
        version=3,
        state=number(FABRIC_STATE, state, "fabric state", notes),
        status=0
        if status.lower() in NOT_AVAILABLE
        else number(FABRIC_STATUS, status, "fabric status", notes),
        clique_id=int(clique) if clique.isdigit() else 0,
        cluster_uuid=ZERO_UUID if uuid.lower() in NOT_AVAILABLE else uuid.lower(),
        health_mask=_mask(fields),
        health_summary=0
        if summary.lower() in NOT_AVAILABLE
        else number(HEALTH_SUMMARY, summary, "fabric health", notes),
    )


def _mask(fields: dict[str, str]) -> int:
    mask = _BANDWIDTH.get(fields.get("bandwidth", "").lower(), 0)
    for shift, key in (
        (2, "route recovery in progress"),
        (4, "route unhealthy"),
        (6, "access timeout recovery"),
    ):
        mask |= _TRUE_FALSE.get(fields.get(key, "").lower(), 0) << shift
    wrong = fields.get("incorrect configuration", "N/A").lower()
    if wrong not in NOT_AVAILABLE:
        mask |= CONFIGURATION.get(wrong, 15) << 8  # 15: wrong in a way that has no number here
    return mask


def size_bytes(text: str) -> int | None:
    """``64M``, ``1.8T``, ``275040 MiB`` in bytes (powers of 1024, as ``df -h`` and nvidia-smi print)."""
    match = re.fullmatch(r"([\d.]+)\s*([KMGTP]?)(?:i?B)?", text.strip())
    if not match:
        return None
    try:
        return int(float(match[1]) * 1024 ** " KMGTP".index(match[2] or " "))
    except ValueError:
        return None
