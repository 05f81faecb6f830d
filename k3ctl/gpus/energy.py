"""What a measurement of energy needs of NVML, read again and again: counter, power, and who is on the GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from k3ctl.gpus.nvml import Reader
from k3ctl.host.values import Refused


@dataclass(frozen=True)
class EnergyReading:
    """One GPU at one moment; None where NVML refuses.

    ``energy_mj``: since the driver loaded (``nvmlDeviceGetTotalEnergyConsumption``). ``power_mw``: the mean of the last
    second on Ampere and later, but for GA100 (``nvmlDeviceGetPowerUsage``). ``pids``: compute processes.
    """

    index: int
    energy_mj: int | None
    power_mw: int | None
    pids: tuple[int, ...] | None


class EnergyReader:
    """Keeps NVML open between readings; ``nv`` as in ``gpus.collect.binding``. Raises nothing."""

    def __init__(self, nv: Any) -> None:
        self._reader = Reader(nv)
        self._handles: dict[int, Any] = {}
        self.error = "" if nv is not None else "the package nvidia-ml-py is not installed"
        if nv is None:
            return
        try:
            nv.nvmlInit()
        except nv.NVMLError as error:
            self.error = f"NVML does not start: {self._reader.refused(int(error.value)).na}"

    def read(self, indices: Iterable[int]) -> tuple[EnergyReading, ...]:
        """The GPUs with these NVML indices, as far as they answer."""
        return () if self.error else tuple(self._one(index) for index in indices)

    def close(self) -> None:
        """Release NVML."""
        if not self.error:
            self.error = "closed"
            self._reader.nv.nvmlShutdown()

    def _one(self, index: int) -> EnergyReading:
        r = self._reader
        if index not in self._handles:
            found = r.get("nvmlDeviceGetHandleByIndex", index, conv=lambda handle: handle)
            if isinstance(found, Refused):
                return EnergyReading(index, None, None, None)
            self._handles[index] = found
        handle = self._handles[index]
        energy = r.get("nvmlDeviceGetTotalEnergyConsumption", handle, conv=int)
        power = r.get("nvmlDeviceGetPowerUsage", handle, conv=int)
        pids = r.get(
            "nvmlDeviceGetComputeRunningProcesses", handle, conv=lambda all_: tuple(int(p.pid) for p in all_)
        )
        return EnergyReading(
            index,
            None if isinstance(energy, Refused) else energy,
            None if isinstance(power, Refused) else power,
            None if isinstance(pids, Refused) else pids,
        )
