"""A stand-in for the module ``pynvml`` that plays back one host of a snapshot.

Constants, structures and error classes are the real binding's; every function has the real name and
parameters and raises the real error where the snapshot says that NVML refused. Functions that nobody plays
back do not exist here, as on an older binding.
"""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml

from k3ctl.gpus.types import Fabric, Gpu, Link, MigDevice, Node, Pair, Platform
from k3ctl.host.values import Maybe, Refused


class Handle:
    """An opaque device handle; the binding's are pointers."""

    def __init__(self, device: Any) -> None:
        self.device = device


def answer(value: Any) -> Any:
    """``value``, or the binding's error when it was refused."""
    if isinstance(value, Refused):
        raise pynvml.NVMLError(value.code)
    return value


class FakeNvml:
    """``FakeNvml(node)`` is to be used where the module ``pynvml`` would be."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.calls = 0
        self.initialized = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml") and callable(getattr(pynvml, name, None)):
            raise AttributeError(name)
        return getattr(pynvml, name)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            object.__setattr__(self, "calls", object.__getattribute__(self, "calls") + 1)
            if name not in ("nvmlInit", "nvmlShutdown") and not object.__getattribute__(self, "initialized"):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        return object.__getattribute__(self, name)

    # library

    def nvmlInit(self) -> None:
        if self.node.nvml.error is not None:
            answer(self.node.nvml.error)
        self.initialized = True

    def nvmlShutdown(self) -> None:
        self.initialized = False

    def nvmlSystemGetDriverVersion(self) -> str:
        return _present(self.node.nvml.driver)

    def nvmlSystemGetNVMLVersion(self) -> str:
        return _present(self.node.nvml.nvml)

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return _present(self.node.nvml.cuda_driver)

    def nvmlSystemGetConfComputeState(self) -> Any:
        state = answer(_present(self.node.nvml.confidential_compute))
        return SimpleNamespace(
            ccFeature=state.feature, environment=state.environment, devToolsMode=state.dev_tools
        )

    # devices

    def nvmlDeviceGetCount(self) -> int:
        return len(self.node.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:
        gpu = self.node.gpus[index]
        if gpu.handle is not None:
            answer(gpu.handle)
        return Handle(gpu)

    def nvmlDeviceGetPciInfo_v3(self, handle: Handle) -> Any:
        pci = handle.device.pci
        return SimpleNamespace(busId=answer(pci.bus_id), pciDeviceId=int(answer(pci.device_id), 16))

    def nvmlDeviceGetMemoryInfo(self, handle: Handle, version: Any = None) -> Any:
        return answer(handle.device.memory)

    def nvmlDeviceGetBAR1MemoryInfo(self, handle: Handle) -> Any:
        return SimpleNamespace(bar1Total=answer(handle.device.bar1_total))

    def nvmlDeviceGetUtilizationRates(self, handle: Handle) -> Any:
        return answer(handle.device.utilization)

    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return answer(handle.device.temperature_c.gpu)

    def nvmlDeviceGetMarginTemperature(self, handle: Handle) -> int:
        return answer(handle.device.temperature_c.margin)

    def nvmlDeviceGetClockInfo(self, handle: Handle, type: int) -> int:
        clocks = handle.device.clocks_mhz
        return answer({pynvml.NVML_CLOCK_SM: clocks.sm, pynvml.NVML_CLOCK_MEM: clocks.memory}[type])

    def nvmlDeviceGetMaxClockInfo(self, handle: Handle, type: int) -> int:
        clocks = handle.device.clocks_mhz
        return answer({pynvml.NVML_CLOCK_SM: clocks.sm_max, pynvml.NVML_CLOCK_MEM: clocks.memory_max}[type])

    def nvmlDeviceGetTotalEccErrors(self, handle: Handle, errorType: int, counterType: int) -> int:
        corrected, uncorrected = (
            pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        )
        volatile, aggregate = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
        ecc = handle.device.ecc
        return answer(
            {
                (corrected, volatile): ecc.volatile_corrected,
                (uncorrected, volatile): ecc.volatile_uncorrected,
                (uncorrected, aggregate): ecc.aggregate_uncorrected,
            }[errorType, counterType]
        )

    def nvmlDeviceGetRemappedRows(self, handle: Handle) -> tuple[int, int, int, int]:
        rows = answer(handle.device.remapped_rows)
        return rows.corrected, rows.uncorrected, rows.pending, rows.failure

    def nvmlDeviceGetC2cModeInfoV(self, handle: Handle) -> Any:
        return SimpleNamespace(isC2cEnabled=answer(handle.device.c2c))

    def nvmlDeviceGetCpuAffinity(self, handle: Handle, cpuSetSize: int) -> list[int]:
        cpus = set(_cpus(answer(handle.device.cpu_affinity)))
        return [sum(1 << (cpu % 64) for cpu in cpus if cpu // 64 == word) for word in range(cpuSetSize)]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> list[Any]:
        return [SimpleNamespace(pid=p.pid, usedGpuMemory=p.bytes) for p in answer(handle.device.processes)]

    # MIG

    def nvmlDeviceGetMigMode(self, handle: Handle) -> list[int]:
        return list(answer(handle.device.mig.mode))

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Handle, index: int) -> Handle:
        devices: tuple[MigDevice, ...] = device.device.mig.devices
        if index >= len(devices):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return Handle(devices[index])

    # fabric and platform

    def nvmlDeviceGetGpuFabricInfoV(self, handle: Handle, gpuFabricInfo: Any) -> Any:
        fabric: Fabric = answer(handle.device.fabric)
        info = gpuFabricInfo._obj
        version = 3 if isinstance(info, pynvml.c_nvmlGpuFabricInfo_v3_t) else 2
        if version > fabric.version:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        info.state, info.status = fabric.state, fabric.status
        info.cliqueId, info.healthMask = fabric.clique_id, fabric.health_mask
        info.clusterUuid[:] = list(uuid.UUID(fabric.cluster_uuid).bytes)
        if version == 3:
            info.healthSummary = fabric.health_summary
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetPlatformInfo(self, device: Handle, platformInfo: Any) -> Any:
        place: Platform = answer(device.device.platform)
        info = platformInfo._obj
        guid = pynvml.c_nvmlPlatformInfo_v2_t.ibGuid
        ctypes.memmove(ctypes.addressof(info) + guid.offset, bytes.fromhex(place.ib_guid), 16)
        info.chassisSerialNumber = place.chassis_serial.encode()
        values = {
            "slotNumber": place.slot,
            "trayIndex": place.tray,
            "hostId": place.host_id,
            "peerType": place.peer_type,
            "moduleId": place.module_id,
        }
        for name, value in values.items():
            setattr(info, name, bytes([value]))
        return pynvml.NVML_SUCCESS

    # links, fields, pairs

    def nvmlDeviceGetNvLinkState(self, handle: Handle, link: int) -> int:
        return answer(_link(handle, link).state)

    def nvmlDeviceGetNvLinkVersion(self, handle: Handle, link: int) -> int:
        return answer(_link(handle, link).version)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Handle, link: int) -> int:
        return answer(_link(handle, link).remote_type)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: Handle, link: int) -> Any:
        return SimpleNamespace(busId=answer(_link(handle, link).remote_pci))

    def nvmlDeviceGetFieldValues(self, handle: Handle, fieldIds: list[Any]) -> list[Any]:
        out = []
        for item in fieldIds:
            field, scope = item if isinstance(item, tuple) else (item, 0)
            value = _field(handle, field, scope)
            entry = pynvml.c_nvmlFieldValue_t()
            entry.fieldId, entry.scopeId, entry.valueType = (
                field,
                scope,
                pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
            )
            entry.nvmlReturn = value.code if isinstance(value, Refused) else 0
            entry.value.ullVal = 0 if isinstance(value, Refused) else value
            out.append(entry)
        return out

    def nvmlDeviceGetTopologyCommonAncestor(self, device1: Handle, device2: Handle) -> int:
        return answer(self._pair(device1, device2).ancestor)

    def nvmlDeviceGetP2PStatus(self, device1: Handle, device2: Handle, p2pIndex: int) -> int:
        caps = self._pair(device1, device2).p2p
        return answer((caps.read, caps.write, caps.nvlink, caps.atomics)[p2pIndex])

    def _pair(self, one: Handle, other: Handle) -> Pair:
        wanted = {one.device.index, other.device.index}
        return next(pair for pair in self.node.pairs if {pair.a, pair.b} == wanted)


def _present(value: Any) -> Any:
    if value is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return answer(value)


def _link(handle: Handle, link: int) -> Link:
    links = handle.device.links
    if not links:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    if link >= len(links):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return links[link]


def _field(handle: Handle, field: int, scope: int) -> Maybe[int]:
    gpu: Gpu = handle.device
    if field == pynvml.NVML_FI_DEV_MEMORY_TEMP:
        return gpu.temperature_c.memory
    if field == pynvml.NVML_FI_DEV_NVLINK_GET_SPEED:
        return _link(handle, scope).speed_mb_s or 0
    if field == pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION:
        return gpu.recovery_action
    return Refused("NotSupported", pynvml.NVML_ERROR_NOT_SUPPORTED)


def _cpus(text: str) -> list[int]:
    out: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        out += range(int(first), int(last or first) + 1)
    return out


def _getter(read: Callable[[Any], Any]) -> Callable[[FakeNvml, Handle], Any]:
    def get(self: FakeNvml, handle: Handle) -> Any:
        return answer(read(handle.device))

    return get


GETTERS: dict[str, Callable[[Any], Any]] = {
    "UUID": lambda d: d.uuid,
    "Name": lambda d: d.name,
    "Serial": lambda d: d.serial,
    "MinorNumber": lambda d: d.minor,
    "ModuleId": lambda d: d.module_id,
    "VbiosVersion": lambda d: d.vbios,
    "Architecture": lambda d: d.architecture,
    "CudaComputeCapability": lambda d: d.compute_capability,
    "CurrPcieLinkGeneration": lambda d: d.pci.gen,
    "MaxPcieLinkGeneration": lambda d: d.pci.gen_max,
    "CurrPcieLinkWidth": lambda d: d.pci.width,
    "MaxPcieLinkWidth": lambda d: d.pci.width_max,
    "PowerUsage": lambda d: d.power_mw.draw,
    "EnforcedPowerLimit": lambda d: d.power_mw.limit,
    "PowerManagementDefaultLimit": lambda d: d.power_mw.default,
    "PowerManagementLimitConstraints": lambda d: d.power_mw.range,
    "CurrentClocksEventReasons": lambda d: d.clock_event_reasons,
    "PerformanceState": lambda d: d.pstate,
    "PersistenceMode": lambda d: d.persistence,
    "ComputeMode": lambda d: d.compute_mode,
    "VirtualizationMode": lambda d: d.virtualization,
    "AddressingMode": lambda d: d.addressing_mode,
    "EccMode": lambda d: d.ecc.mode,
    "NumaNodeId": lambda d: d.gpu_numa_node,
}
for _name, _read in GETTERS.items():
    setattr(FakeNvml, f"nvmlDeviceGet{_name}", _getter(_read))
