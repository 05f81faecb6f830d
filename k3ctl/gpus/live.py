"""Repeated readings of this host's GPUs: what changes while they work, with NVML kept open between readings.

A reading gives the same ``Gpu`` values as a snapshot, with the fields that never change while running read once
(name, PCI identity, link speeds), plus the NVLink counters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from k3ctl.gpus import nvml
from k3ctl.gpus.nvml import Reader
from k3ctl.gpus.types import Gpu, Link, NvmlSystem
from k3ctl.host.values import Maybe, Refused, known

FIELD_TX_KIB, FIELD_RX_KIB = 138, 139
"""NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX/RX: KiB since the driver loaded; scope = link, or ALL_LINKS for the sum."""

ALL_LINKS = 0xFFFFFFFF
FIELDS_DL_ERRORS = (161, 162, 163)
"""NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, RECOVERY, CRC: per link, up to NVLink 4."""

FIELDS_COUNT_ERRORS = (206, 207, 208, 211, 213, 214)
"""NVLink 5: malformed packets, buffer overruns, receive errors, link integrity, recoveries done and failed."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """NVLink counters of one GPU, summed over its links; None where the driver refuses them.

    ``limit_bytes_s`` is what the links that are up can carry in one direction.
    """

    tx_bytes: int | None = None
    rx_bytes: int | None = None
    errors: int | None = None
    limit_bytes_s: float | None = None


@dataclass(frozen=True, slots=True)
class LiveReading:
    """One reading: the driver, the GPUs, and the traffic by GPU index."""

    system: NvmlSystem
    gpus: tuple[Gpu, ...] = ()
    traffic: dict[int, Traffic] | None = None


class LiveReader:
    """Reads again and again through ``nv`` (see ``k3ctl.gpus.collect.binding``); raises nothing."""

    def __init__(self, nv: Any) -> None:
        self._nv = nv
        self._open = False
        self._fixed: dict[int, Gpu] = {}

    def read(self) -> LiveReading:
        """One reading. A driver that went away is reported, and tried again at the next reading."""
        if self._nv is None:
            return LiveReading(NvmlSystem(error=nvml.NO_BINDING))
        reader = Reader(self._nv)
        if not self._open:
            try:
                self._nv.nvmlInit()
            except self._nv.NVMLError as error:
                return LiveReading(NvmlSystem(error=reader.refused(int(error.value))))
            self._open = True
        count = reader.get("nvmlDeviceGetCount", conv=int)
        if isinstance(count, Refused):
            self.close()
            return LiveReading(NvmlSystem(error=count))
        gpus: list[Gpu] = []
        traffic: dict[int, Traffic] = {}
        for index in range(count):
            handle = reader.get("nvmlDeviceGetHandleByIndex", index, conv=lambda h: h)
            if isinstance(handle, Refused):
                gpus.append(Gpu(index=index, handle=handle))
                continue
            gpu = self._gpu(reader, handle, index)
            gpus.append(gpu)
            traffic[index] = _traffic(reader, handle, known(gpu.links, ()))
        driver = reader.get("nvmlSystemGetDriverVersion", conv=str)
        return LiveReading(NvmlSystem(driver=driver or None), tuple(gpus), traffic)

    def close(self) -> None:
        """Release NVML."""
        if self._open:
            self._open = False
            self._fixed.clear()
            self._nv.nvmlShutdown()

    def _gpu(self, r: Reader, h: Any, index: int) -> Gpu:
        """The first reading is complete; later ones keep its fixed fields and read the rest again."""
        if index not in self._fixed:
            self._fixed[index] = nvml.gpu(r, h, index, cpu_words=1)
            return self._fixed[index]
        fixed = self._fixed[index]
        fresh = nvml.live_fields(r, h)
        return replace(fixed, **fresh, links=_links(r, h, known(fixed.links, ())))


def _links(r: Reader, h: Any, links: tuple[Link, ...]) -> tuple[Link, ...]:
    """The same links with their present state."""
    return tuple(
        replace(link, state=r.get("nvmlDeviceGetNvLinkState", h, link.link, conv=int)) for link in links
    )


def _traffic(r: Reader, h: Any, links: tuple[Link, ...]) -> Traffic:
    up = [link.link for link in links if known(link.state, 0) == 1]
    if not up:
        return Traffic()
    tx, rx = r.fields(h, [(FIELD_TX_KIB, ALL_LINKS), (FIELD_RX_KIB, ALL_LINKS)])
    errors = [
        value
        for field in (*FIELDS_DL_ERRORS, *FIELDS_COUNT_ERRORS)
        for value in r.fields(h, [(field, link) for link in up])
        if not isinstance(value, Refused)
    ]
    speeds = [known(link.speed_mb_s, 0) for link in links if link.link in up]
    return Traffic(
        tx_bytes=_kib(tx),
        rx_bytes=_kib(rx),
        errors=sum(errors) if errors else None,
        limit_bytes_s=sum(speeds) * 1e6 if any(speeds) else None,
    )


def _kib(value: Maybe[int]) -> int | None:
    return None if isinstance(value, Refused) else value * 1024
