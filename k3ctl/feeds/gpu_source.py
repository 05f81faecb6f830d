"""The GPU feed: NVML of this node, judged by doctor's rules."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

from k3ctl.checks import Severity, evaluate
from k3ctl.gpus.collect import binding
from k3ctl.gpus.live import LiveReader, LiveReading
from k3ctl.gpus.types import Node, Snapshot
from k3ctl.telemetry import gpus
from k3ctl.telemetry.events import Event, FeedFailed, GpusRead
from k3ctl.telemetry.gpus import GpuFinding

ABSENT = {
    "LibraryNotFound": "no NVIDIA driver on this host",
    "DriverNotLoaded": "the NVIDIA driver is not loaded",
    "LibRmVersionMismatch": "driver and library have different versions",
    "BindingNotInstalled": "the package nvidia-ml-py is not installed",
}

LIVE_FAMILIES = frozenset({"gpu", "memory", "clock", "fabric", "mig"})
LIVE_RULES = frozenset({"nvlink.links-down"})
NOT_LIVE = frozenset({"gpu.missing", "gpu.subset", "gpu.memory-held"})
"""Doctor's rules that a live reading can judge; the others need pairs, services or facts about the host. Memory that
is held is what a served model looks like, and only doctor knows whose it is.
"""


class GpuFeed:
    """Reads the GPUs every two seconds."""

    interval_s = 2.0

    def __init__(self, reader: LiveReader | None = None, node: str = "") -> None:
        self._reader = reader or LiveReader(binding())
        self._node = node or socket.gethostname().split(".")[0]

    def read(self) -> Sequence[Event]:
        """The GPUs now."""
        reading = self._reader.read()
        now = time.time()
        if reading.system.error is not None:
            name = reading.system.error.na
            reason = f"no GPU can be read: {ABSENT.get(name, 'NVML does not start')} ({name})"
            return [FeedFailed(now, self._node, "gpus", reason)]
        if not reading.gpus:
            return [FeedFailed(now, self._node, "gpus", "the driver lists no GPU")]
        traffic = reading.traffic or {}
        samples = tuple(gpus.sample(gpu, traffic.get(gpu.index)) for gpu in reading.gpus)
        return [GpusRead(now, self._node, samples, live_findings(self._node, reading))]

    def close(self) -> None:
        """Release NVML."""
        self._reader.close()


def live_findings(hostname: str, reading: LiveReading) -> tuple[GpuFinding, ...]:
    """What doctor's rules say about a live reading, as far as it can tell."""
    node = Node(hostname=hostname, nvml=reading.system, gpus=reading.gpus)
    return tuple(
        GpuFinding(
            found.id, found.severity.name.lower(), found.title, found.evidence, found.remedy, found.where
        )
        for found in evaluate(Snapshot((node,)))
        if found.severity >= Severity.WARN
        and found.id not in NOT_LIVE
        and (found.id in LIVE_RULES or found.id.split(".")[0] in LIVE_FAMILIES)
    )
