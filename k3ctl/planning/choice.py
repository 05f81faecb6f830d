"""The profile for this host: what ``k3ctl plan`` chooses, or why it chooses none."""

from __future__ import annotations

from k3ctl.errors import MachineError
from k3ctl.gpus.types import Node
from k3ctl.planning import detect
from k3ctl.planning.hardware import Hardware
from k3ctl.planning.selection import Candidate, Selection, select
from k3ctl.profiles import loader

LIBRARY_NOT_FOUND = 12
"""NVML's code on a machine without a driver: it has no GPU to offer."""
MOST_REASONS = 12


def unread(hardware: Hardware) -> str:
    """Why it is not known which GPUs the hosts have; empty where they were read, or there is no driver at all."""
    nodes: list[Node] = [machine.node for machine in hardware.machines.machines] if hardware.machines else []
    for node in nodes:
        error = node.nvml.error
        if error is not None and error.code != LIBRARY_NOT_FOUND:
            return f"{node.hostname}: NVML said {error.na}"
    return ""


def for_this_host() -> Selection:
    """The ranking of all readable profiles on this host.

    Raises:
        MachineError: its GPUs cannot be read, so nothing may be concluded from seeing none.
    """
    hardware = detect.this_host()
    if why := unread(hardware):
        raise MachineError(
            "no profile can be chosen: the GPUs of this machine cannot be read",
            reasons=[why],
            hint="`k3ctl doctor` explains; or name the profile yourself",
        )
    return select(loader.load_readable()[0], hardware)


def chosen(selection: Selection) -> Candidate:
    """The winner.

    Raises:
        MachineError: nothing can run here; every profile with its reason.
    """
    if selection.chosen is not None:
        return selection.chosen
    reasons = [f"{other.profile.name}: {other.reason}" for other in selection.others]
    if len(reasons) > MOST_REASONS:
        reasons = [*reasons[:MOST_REASONS], f"and {len(reasons) - MOST_REASONS} more"]
    raise MachineError(
        selection.shortfall or "no profile can run on this machine",
        reasons=reasons,
        hint="`k3ctl plan` says more; `k3ctl serve --profile NAME` tries one anyway",
    )
