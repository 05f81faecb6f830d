"""GPU faults in the kernel log."""

from __future__ import annotations

from collections.abc import Iterator

from k3ctl.checks.finding import Area, Hit, Severity, Source, rule
from k3ctl.checks.view import NodeView
from k3ctl.host.kernel_log import OFF_BUS_XID, bus_id
from k3ctl.host.types import Xid
from k3ctl.host.values import known

XID_DOC = Source("https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html", "2026-11")
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 69})
"""Faults that a program can cause; the GPU itself is usually fine."""
HARDWARE_XIDS = frozenset(
    {48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 136, 140, 143, 144, 145, 149, 150, 154}
)


@rule(
    "gpu.off-bus",
    Severity.FAIL,
    Area.GPU,
    "A GPU has fallen off the bus",
    blocks="any group that includes this GPU",
    remedy="power-cycle the host; if it happens again have the GPU, its power or its riser replaced",
    sources=(Source("https://github.com/leptonai/gpud/pull/1209", "2026-02-14", "may carry no Xid"), XID_DOC),
)
def off_bus(view: NodeView) -> Iterator[Hit]:
    for fault in _faults(view):
        if fault.code in (None, OFF_BUS_XID):
            without = fault.text if fault.text.startswith("nvidia-smi") else "kernel log, without an Xid"
            yield Hit(f"kernel log: Xid {fault.code}" if fault.code else without, _place(view, fault))


@rule(
    "xid.hardware",
    Severity.FAIL,
    Area.GPU,
    "The kernel log holds a hardware fault of a GPU",
    blocks="trust in this GPU",
    remedy="look the Xid up, reset the GPU, and take it out of service if it comes back",
    sources=(
        XID_DOC,
        Source("https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1355", "2026", "Xid 145"),
    ),
)
def hardware(view: NodeView) -> Iterator[Hit]:
    for fault in _faults(view):
        if fault.code in HARDWARE_XIDS and fault.code != OFF_BUS_XID:
            yield Hit(_text(fault), _place(view, fault))


@rule(
    "xid.application",
    Severity.WARN,
    Area.GPU,
    "The kernel log holds a fault that a program can cause",
    blocks="",
    remedy="find the rank by its pid in the engine log; check versions and context length of that run",
    sources=(XID_DOC, Source("https://github.com/sgl-project/sglang/issues/32855", "2026-07-30", "Xid 13")),
)
def application(view: NodeView) -> Iterator[Hit]:
    for fault in _faults(view):
        if fault.code in APPLICATION_XIDS:
            yield Hit(_text(fault), _place(view, fault))


@rule(
    "xid.other",
    Severity.WARN,
    Area.GPU,
    "The kernel log holds an Xid that this k3ctl does not class",
    blocks="",
    remedy="look the Xid up",
    sources=(XID_DOC,),
)
def other(view: NodeView) -> Iterator[Hit]:
    for fault in _faults(view):
        if fault.code is not None and fault.code not in APPLICATION_XIDS | HARDWARE_XIDS | {OFF_BUS_XID}:
            yield Hit(_text(fault), _place(view, fault))


def _faults(view: NodeView) -> list[Xid]:
    """The faults of this host; in a container those of its own GPUs, for the log is the whole host's."""
    faults = list(view.host.xids or ()) if view.host else []
    if view.node.virt != "container":
        return faults
    own = {bus_id(bus) for gpu in view.node.present if (bus := known(gpu.pci.bus_id, ""))}
    return [fault for fault in faults if fault.bus_id in own]


def _place(view: NodeView, fault: Xid) -> str:
    """The GPU as the other rules name it, where its address is known; else the address in the log."""
    gpus = view.node.present
    return next((g.label for g in gpus if known(g.pci.bus_id, "").upper() == fault.bus_id), fault.bus_id)


def _text(fault: Xid) -> str:
    who = f", pid {fault.pid} ({fault.process})" if fault.pid and fault.process else ""
    return f"Xid {fault.code}{who}: {fault.text}" if fault.text else f"Xid {fault.code}{who}"
