"""One reading of a node's GPUs, as far as a live screen needs it.

Values that the driver refuses are None. NVLink counters are cumulative; rates come from two readings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k3ctl.gpus.live import Traffic
from k3ctl.gpus.types import ZERO_UUID, Fabric, Gpu, Memory
from k3ctl.host.values import Refused, known

THROTTLE_BITS: Mapping[int, str] = {
    0x4: "SW power cap",
    0x8: "HW slowdown",
    0x20: "SW thermal",
    0x40: "HW thermal",
    0x80: "power brake",
}
"""``nvmlClocksEventReason*`` bits that lower clocks; idle (0x1) and requested clocks are no throttling."""

FABRIC_STATES: Mapping[int, str] = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
FABRIC_HEALTH: Mapping[int, str] = {0: "", 1: "healthy", 2: "unhealthy", 3: "limited capacity"}


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment. ``lost`` holds the driver's error when the GPU cannot be opened.

    ``nvlink_limit_bytes_s`` is what all links that are up can carry in one direction.
    """

    index: int
    name: str = ""
    lost: str = ""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_mhz: int | None = None
    sm_max_mhz: int | None = None
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    utilization_percent: int | None = None
    throttle: tuple[str, ...] = ()
    links_up: int | None = None
    links: int | None = None
    nvlink_tx_bytes: int | None = None
    nvlink_rx_bytes: int | None = None
    nvlink_errors: int | None = None
    nvlink_limit_bytes_s: float | None = None
    ecc_uncorrected: int | None = None
    remap: str = ""
    fabric_state: int | None = None
    fabric_status: int | None = None
    fabric_health: int | None = None
    nvlink_domain: str = ""
    """Cluster and clique of a GPU that is registered with a fabric: equal on GPUs that reach each other by NVLink."""

    @property
    def fabric(self) -> str:
        """Fabric registration in words; empty when the GPU has no fabric."""
        if self.fabric_state is None:
            return ""
        if self.fabric_state != 3:
            return FABRIC_STATES.get(self.fabric_state, f"state {self.fabric_state}")
        if self.fabric_status:
            return f"completed, error {self.fabric_status}"
        return FABRIC_HEALTH.get(self.fabric_health or 0, "") or "completed"


@dataclass(frozen=True)
class GpuFinding:
    """What doctor's rules say about a reading; ``rule`` is the rule's id, ``severity`` fail, warn or info."""

    rule: str
    severity: str
    title: str
    evidence: str
    remedy: str
    where: str


def sample(gpu: Gpu, traffic: Traffic | None = None) -> GpuSample:
    """The live view's part of a GPU reading."""
    if gpu.handle is not None:
        return GpuSample(gpu.index, lost=gpu.handle.na)
    memory = gpu.memory if isinstance(gpu.memory, Memory) else None
    fabric = gpu.fabric if isinstance(gpu.fabric, Fabric) else None
    traffic = traffic or Traffic()
    return GpuSample(
        index=gpu.index,
        name=known(gpu.name, ""),
        memory_used_bytes=memory.used if memory else None,
        memory_total_bytes=memory.total if memory else None,
        power_w=_watts(gpu.power_mw.draw),
        power_limit_w=_watts(gpu.power_mw.limit),
        sm_mhz=known(gpu.clocks_mhz.sm, None),
        sm_max_mhz=known(gpu.clocks_mhz.sm_max, None),
        temperature_c=known(gpu.temperature_c.gpu, None),
        memory_temperature_c=known(gpu.temperature_c.memory, None),
        utilization_percent=None if isinstance(gpu.utilization, Refused) else gpu.utilization.gpu,
        throttle=throttle_reasons(known(gpu.clock_event_reasons, 0)),
        links_up=gpu.links_up if gpu.links else None,
        links=len(gpu.links) or None,
        nvlink_tx_bytes=traffic.tx_bytes,
        nvlink_rx_bytes=traffic.rx_bytes,
        nvlink_errors=traffic.errors,
        nvlink_limit_bytes_s=traffic.limit_bytes_s,
        ecc_uncorrected=known(gpu.ecc.volatile_uncorrected, None),
        remap=_remap(gpu),
        fabric_state=fabric.state if fabric else None,
        fabric_status=fabric.status if fabric else None,
        fabric_health=fabric.health_summary if fabric else None,
        nvlink_domain=_domain(fabric),
    )


def _watts(milliwatts: int | Refused) -> float | None:
    return None if isinstance(milliwatts, Refused) else milliwatts / 1e3


def _domain(fabric: Fabric | None) -> str:
    if fabric is None or fabric.state != 3 or fabric.status or fabric.cluster_uuid == ZERO_UUID:
        return ""
    return f"{fabric.cluster_uuid}/{fabric.clique_id}"


def _remap(gpu: Gpu) -> str:
    rows = gpu.remapped_rows
    if isinstance(rows, Refused):
        return ""
    return "failed" if rows.failure else "pending" if rows.pending else ""


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """Names of the clock-lowering bits of ``nvmlDeviceGetCurrentClocksEventReasons``."""
    return tuple(name for bit, name in THROTTLE_BITS.items() if bits & bit)


def to_json(reading: GpuSample) -> dict[str, Any]:
    """The fields that have a value."""
    row = {name: getattr(reading, name) for name in GpuSample.__dataclass_fields__}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in row.items()
        if value not in (None, "", ())
    }


def from_json(row: Mapping[str, Any]) -> GpuSample:
    """The inverse of ``to_json``; unknown keys are ignored.

    Raises KeyError, TypeError or ValueError for a row of another kind.
    """
    fields = {name: row[name] for name in GpuSample.__dataclass_fields__ if name in row}
    fields["index"] = int(row["index"])
    if "throttle" in fields:
        fields["throttle"] = tuple(str(reason) for reason in fields["throttle"])
    return GpuSample(**fields)
