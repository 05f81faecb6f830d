"""One reading of a node's GPUs, as far as a live screen needs it.

Values that the driver refuses are None. NVLink counters are cumulative; rates come from two readings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

THROTTLE_BITS: Mapping[int, str] = {
    0x4: "SW power cap",
    0x8: "HW slowdown",
    0x20: "SW thermal",
    0x40: "HW thermal",
    0x80: "power brake",
}
"""``nvmlClocksEventReason*`` bits that lower clocks; idle (0x1) and requested clocks are no throttling."""

HARD_THROTTLE = frozenset({"HW slowdown", "HW thermal", "power brake"})

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
    remap_pending: bool = False
    remap_failure: bool = False
    recovery_action: int | None = None
    fabric_state: int | None = None
    fabric_status: int | None = None
    fabric_health: int | None = None

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


def throttle_reasons(bits: int | None) -> tuple[str, ...]:
    """Names of the clock-lowering bits of ``nvmlDeviceGetCurrentClocksEventReasons``."""
    if bits is None:
        return ()
    return tuple(name for bit, name in THROTTLE_BITS.items() if bits & bit)


def to_json(sample: GpuSample) -> dict[str, Any]:
    """The fields that have a value."""
    row = {name: getattr(sample, name) for name in GpuSample.__dataclass_fields__}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in row.items()
        if name == "index" or value not in (None, "", (), False) or (value == 0 and value is not False)
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
