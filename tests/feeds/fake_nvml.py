"""NVML as the live reader calls it, answering from a saved ``k3ctl.nvml/1`` node with the binding's own errors."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pynvml as real


class FakeNvml:
    """Constants, structures and errors are the binding's; ``traffic_kib`` grows by what a test adds."""

    def __init__(self, node: dict[str, Any]) -> None:
        self.node = node
        self.traffic_kib = 0
        self.link_errors = 0
        self.inits = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml") and callable(getattr(real, name, None)):
            raise AttributeError(name)
        return getattr(real, name)

    def nvmlInit(self) -> None:
        self.inits += 1
        if error := self.node["nvml"].get("error"):
            raise real.NVMLError(error["code"])

    def nvmlShutdown(self) -> None:
        self.inits -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return str(self.node["nvml"]["driver"])

    def nvmlDeviceGetCount(self) -> int:
        return len(self.node["gpus"])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        gpu = self.node["gpus"][index]
        if "handle" in gpu:
            raise real.NVMLError(gpu["handle"]["code"])
        return gpu

    def nvmlDeviceGetName(self, gpu: dict[str, Any]) -> Any:
        return _value(gpu["name"])

    def nvmlDeviceGetCudaComputeCapability(self, gpu: dict[str, Any]) -> Any:
        return _value(gpu["compute_capability"])

    def nvmlDeviceGetPciInfo_v3(self, gpu: dict[str, Any]) -> Any:
        device = int(gpu["pci"]["device_id"], 16)
        return SimpleNamespace(busId=gpu["pci"]["bus_id"], pciDeviceId=device)

    def nvmlDeviceGetMemoryInfo(self, gpu: dict[str, Any]) -> Any:
        return SimpleNamespace(**_value(gpu["memory"]))

    def nvmlDeviceGetPowerUsage(self, gpu: dict[str, Any]) -> Any:
        return _value(gpu["power_mw"]["draw"])

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: dict[str, Any]) -> Any:
        return _value(gpu["power_mw"]["limit"])

    def nvmlDeviceGetTemperature(self, gpu: dict[str, Any], _: int) -> Any:
        return _value(gpu["temperature_c"]["gpu"])

    def nvmlDeviceGetClockInfo(self, gpu: dict[str, Any], kind: int) -> Any:
        return _value(gpu["clocks_mhz"]["sm" if kind == 1 else "memory"])

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: dict[str, Any]) -> Any:
        return _value(gpu["clock_event_reasons"])

    def nvmlDeviceGetUtilizationRates(self, gpu: dict[str, Any]) -> Any:
        return SimpleNamespace(**_value(gpu["utilization"]))

    def nvmlDeviceGetTotalEccErrors(self, gpu: dict[str, Any], kind: int, counter: int) -> Any:
        name = {(0, 0): "volatile_corrected", (1, 0): "volatile_uncorrected"}.get(
            (kind, counter), "aggregate_uncorrected"
        )
        return _value(gpu["ecc"][name])

    def nvmlDeviceGetRemappedRows(self, gpu: dict[str, Any]) -> Any:
        rows = _value(gpu["remapped_rows"])
        return [rows[name] for name in ("corrected", "uncorrected", "pending", "failure")]

    def nvmlDeviceGetMigMode(self, gpu: dict[str, Any]) -> Any:
        return _value(gpu["mig"]["mode"])

    def nvmlDeviceGetNvLinkState(self, gpu: dict[str, Any], link: int) -> Any:
        if link >= len(gpu["links"]):
            raise real.NVMLError(real.NVML_ERROR_INVALID_ARGUMENT)
        return _value(gpu["links"][link]["state"])

    def nvmlDeviceGetGpuFabricInfoV(self, gpu: dict[str, Any], pointer: Any) -> None:
        fabric = _value(gpu["fabric"])
        info = pointer._obj
        info.state, info.status, info.cliqueId = fabric["state"], fabric["status"], fabric["clique_id"]
        info.clusterUuid = type(info.clusterUuid)(*uuid.UUID(fabric["cluster_uuid"]).bytes)
        info.healthMask = fabric["health_mask"]
        if hasattr(info, "healthSummary"):
            info.healthSummary = fabric.get("health_summary") or 0

    def nvmlDeviceGetFieldValues(self, gpu: dict[str, Any], ids: list[Any]) -> list[Any]:
        return [self._field(gpu, *(entry if isinstance(entry, tuple) else (entry, 0))) for entry in ids]

    def _field(self, gpu: dict[str, Any], field: int, scope: int) -> Any:
        known: dict[int, Any] = {
            82: gpu["temperature_c"]["memory"],
            230: gpu["recovery_action"],
            138: self.traffic_kib,
            139: self.traffic_kib,
            161: self.link_errors if scope == 0 else 0,
        }
        if field == 164 and scope < len(gpu["links"]):
            known[164] = gpu["links"][scope].get("speed_mb_s")
        value = known.get(field)
        if value is None or isinstance(value, dict):
            return SimpleNamespace(nvmlReturn=real.NVML_ERROR_NOT_SUPPORTED, valueType=0, value=None)
        return SimpleNamespace(nvmlReturn=0, valueType=3, value=SimpleNamespace(ullVal=value))


def _value(value: Any) -> Any:
    if value is None:
        raise real.NVMLError(real.NVML_ERROR_NOT_SUPPORTED)
    if isinstance(value, dict) and "na" in value:
        raise real.NVMLError(value["code"])
    return value
