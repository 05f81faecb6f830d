"""The one gateway to NVML: read everything about this host's GPUs, raise for nothing, take no GPU memory.

``nv`` is the module ``pynvml`` of the distribution ``nvidia-ml-py``, or anything with the same functions.
Every read stands alone: a refused value becomes a ``Refused`` and the rest of the GPU is still read.
"""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from k3ctl.gpus.types import (
    ZERO_UUID,
    Clocks,
    ConfidentialCompute,
    Ecc,
    Fabric,
    Gpu,
    GpuProcess,
    Link,
    Memory,
    Mig,
    MigDevice,
    NvmlSystem,
    P2p,
    Pair,
    Pci,
    Platform,
    Power,
    RemappedRows,
    Temperature,
    Utilization,
)
from k3ctl.host.values import Maybe, Refused

T = TypeVar("T")

FIELD_MEMORY_TEMP = 82
FIELD_LINK_SPEED = 164
"""NVML_FI_DEV_NVLINK_GET_SPEED: MB/s per direction, scope = link."""
FIELD_RECOVERY_ACTION = 230
MAX_LINKS = 36
P2P_CAPS = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3}
"""nvmlGpuP2PCapsIndex_t; not the binding's NVML_P2P_CAPS_INDEX_READ, which is the tuple ``(0,)``."""
INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND = 2, 3, 13
NO_BINDING = Refused("BindingNotInstalled")
_UNION_FIELDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_UNKNOWN_BYTES = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE: a process whose memory the caller may not see."""


class Reader:
    """Calls ``nv``'s functions by name and turns its errors into ``Refused`` values."""

    def __init__(self, nv: Any) -> None:
        self.nv = nv

    def refused(self, code: int) -> Refused:
        """The ``Refused`` for an nvmlReturn_t."""
        error = self.nv.NVMLError(code)
        return Refused(type(error).__name__.removeprefix("NVMLError_"), code)

    def get(self, name: str, *args: Any, conv: Callable[[Any], T]) -> Maybe[T]:
        """``conv(nv.name(*args))``; ``Refused`` when NVML, the binding or the conversion says no."""
        function = getattr(self.nv, name, None)
        if function is None:
            return Refused("FunctionNotFound", FUNCTION_NOT_FOUND)
        try:
            return conv(function(*args))
        except self.nv.NVMLError as error:
            return self.refused(int(error.value))
        except (UnicodeDecodeError, ValueError, TypeError, AttributeError, IndexError) as error:
            return Refused(f"Undecodable: {error}")

    def fields(self, handle: Any, ids: Sequence[int | tuple[int, int]]) -> list[Maybe[int]]:
        """Field values in one call; each carries its own nvmlReturn_t."""
        try:
            values = self.nv.nvmlDeviceGetFieldValues(handle, list(ids))
        except self.nv.NVMLError as error:
            return [self.refused(int(error.value))] * len(ids)
        except AttributeError:
            return [Refused("FunctionNotFound", FUNCTION_NOT_FOUND)] * len(ids)
        return [self._field(value) for value in values]

    def _field(self, value: Any) -> Maybe[int]:
        if value.nvmlReturn:
            return self.refused(int(value.nvmlReturn))
        kind = int(value.valueType)
        if kind >= len(_UNION_FIELDS):
            return Refused(f"Undecodable: value type {kind}")
        return int(getattr(value.value, _UNION_FIELDS[kind]))


Answer = tuple[NvmlSystem, tuple[Gpu, ...], tuple[Pair, ...]]


def read(nv: Any, cpu_count: int) -> Answer:
    """The driver, the GPUs and their pairs, through ``nv``; None means the binding is not installed."""
    if nv is None:
        return NvmlSystem(error=NO_BINDING), (), ()
    reader = Reader(nv)
    try:
        nv.nvmlInit()
    except nv.NVMLError as error:
        return NvmlSystem(error=reader.refused(int(error.value))), (), ()
    try:
        count = reader.get("nvmlDeviceGetCount", conv=int)
        if isinstance(count, Refused):
            return _system(reader, error=count), (), ()
        words = max(1, -(-cpu_count // 64))
        handles: dict[int, Any] = {}
        gpus = tuple(_open(reader, index, words, handles) for index in range(count))
        return _system(reader), gpus, _pairs(reader, handles)
    finally:
        nv.nvmlShutdown()


def _system(r: Reader, error: Refused | None = None) -> NvmlSystem:
    driver = r.get("nvmlSystemGetDriverVersion", conv=_text)
    version = r.get("nvmlSystemGetNVMLVersion", conv=_text)
    cuda = r.get("nvmlSystemGetCudaDriverVersion_v2", conv=int)
    return NvmlSystem(
        error=error,
        driver=driver or None,
        nvml=version or None,
        cuda_driver=cuda or None,
        confidential_compute=r.get(
            "nvmlSystemGetConfComputeState",
            conv=lambda s: ConfidentialCompute(int(s.ccFeature), int(s.environment), int(s.devToolsMode)),
        ),
    )


def _open(r: Reader, index: int, cpu_words: int, handles: dict[int, Any]) -> Gpu:
    handle = r.get("nvmlDeviceGetHandleByIndex", index, conv=lambda h: h)
    if isinstance(handle, Refused):
        return Gpu(index=index, handle=handle)
    handles[index] = handle
    return gpu(r, handle, index, cpu_words)


def gpu(r: Reader, h: Any, index: int, cpu_words: int) -> Gpu:
    """Everything about one GPU; ``cpu_words`` 64-bit words hold the host's processors."""
    return Gpu(
        index=index,
        uuid=r.get("nvmlDeviceGetUUID", h, conv=_text),
        name=r.get("nvmlDeviceGetName", h, conv=_text),
        serial=r.get("nvmlDeviceGetSerial", h, conv=_text),
        minor=r.get("nvmlDeviceGetMinorNumber", h, conv=int),
        module_id=r.get("nvmlDeviceGetModuleId", h, conv=int),
        vbios=r.get("nvmlDeviceGetVbiosVersion", h, conv=_text),
        architecture=r.get("nvmlDeviceGetArchitecture", h, conv=int),
        compute_capability=r.get("nvmlDeviceGetCudaComputeCapability", h, conv=_ints),
        pci=_pci(r, h),
        bar1_total=r.get("nvmlDeviceGetBAR1MemoryInfo", h, conv=lambda v: int(v.bar1Total)),
        persistence=r.get("nvmlDeviceGetPersistenceMode", h, conv=int),
        compute_mode=r.get("nvmlDeviceGetComputeMode", h, conv=int),
        virtualization=r.get("nvmlDeviceGetVirtualizationMode", h, conv=int),
        addressing_mode=r.get("nvmlDeviceGetAddressingMode", h, conv=int),
        c2c=r.get("nvmlDeviceGetC2cModeInfoV", h, conv=lambda v: int(v.isC2cEnabled)),
        gpu_numa_node=r.get("nvmlDeviceGetNumaNodeId", h, conv=int),
        cpu_affinity=r.get("nvmlDeviceGetCpuAffinity", h, cpu_words, conv=_cpu_list),
        mig=_mig(r, h),
        platform=_platform(r, h),
        links=_links(r, h),
        processes=r.get("nvmlDeviceGetComputeRunningProcesses", h, conv=_processes),
        **live_fields(r, h),
    )


def live_fields(r: Reader, h: Any) -> dict[str, Any]:
    """The fields of ``Gpu`` that change while the GPU works, by name."""
    memory_temp, recovery = r.fields(h, [FIELD_MEMORY_TEMP, FIELD_RECOVERY_ACTION])
    return {
        "memory": r.get("nvmlDeviceGetMemoryInfo", h, conv=_memory),
        "power_mw": _power(r, h),
        "temperature_c": Temperature(
            gpu=r.get("nvmlDeviceGetTemperature", h, 0, conv=int),
            memory=memory_temp,
            margin=r.get("nvmlDeviceGetMarginTemperature", h, conv=int),
        ),
        "clocks_mhz": _clocks(r, h),
        "clock_event_reasons": r.get("nvmlDeviceGetCurrentClocksEventReasons", h, conv=int),
        "pstate": r.get("nvmlDeviceGetPerformanceState", h, conv=int),
        "utilization": r.get(
            "nvmlDeviceGetUtilizationRates",
            h,
            conv=lambda v: Utilization(gpu=int(v.gpu), memory=int(v.memory)),
        ),
        "ecc": _ecc(r, h),
        "remapped_rows": r.get("nvmlDeviceGetRemappedRows", h, conv=lambda v: RemappedRows(*_ints(v))),
        "recovery_action": recovery,
        "fabric": _fabric(r, h),
    }


def _pci(r: Reader, h: Any) -> Pci:
    info = r.get("nvmlDeviceGetPciInfo_v3", h, conv=lambda p: (_text(p.busId), f"0x{int(p.pciDeviceId):08X}"))
    return Pci(
        bus_id=info if isinstance(info, Refused) else info[0],
        device_id=info if isinstance(info, Refused) else info[1],
        gen=r.get("nvmlDeviceGetCurrPcieLinkGeneration", h, conv=int),
        gen_max=r.get("nvmlDeviceGetMaxPcieLinkGeneration", h, conv=int),
        width=r.get("nvmlDeviceGetCurrPcieLinkWidth", h, conv=int),
        width_max=r.get("nvmlDeviceGetMaxPcieLinkWidth", h, conv=int),
    )


def _power(r: Reader, h: Any) -> Power:
    return Power(
        draw=r.get("nvmlDeviceGetPowerUsage", h, conv=int),
        limit=r.get("nvmlDeviceGetEnforcedPowerLimit", h, conv=int),
        default=r.get("nvmlDeviceGetPowerManagementDefaultLimit", h, conv=int),
        range=r.get("nvmlDeviceGetPowerManagementLimitConstraints", h, conv=_ints),
    )


def _clocks(r: Reader, h: Any) -> Clocks:
    sm, memory = 1, 2
    return Clocks(
        sm=r.get("nvmlDeviceGetClockInfo", h, sm, conv=int),
        memory=r.get("nvmlDeviceGetClockInfo", h, memory, conv=int),
        sm_max=r.get("nvmlDeviceGetMaxClockInfo", h, sm, conv=int),
        memory_max=r.get("nvmlDeviceGetMaxClockInfo", h, memory, conv=int),
    )


def _ecc(r: Reader, h: Any) -> Ecc:
    corrected, uncorrected, volatile, aggregate = 0, 1, 0, 1
    return Ecc(
        mode=r.get("nvmlDeviceGetEccMode", h, conv=_ints),
        volatile_corrected=r.get("nvmlDeviceGetTotalEccErrors", h, corrected, volatile, conv=int),
        volatile_uncorrected=r.get("nvmlDeviceGetTotalEccErrors", h, uncorrected, volatile, conv=int),
        aggregate_uncorrected=r.get("nvmlDeviceGetTotalEccErrors", h, uncorrected, aggregate, conv=int),
    )


def _mig(r: Reader, h: Any) -> Mig:
    mode = r.get("nvmlDeviceGetMigMode", h, conv=_ints)
    if isinstance(mode, Refused) or not mode[0]:
        return Mig(mode=mode)
    devices = []
    for i in range(r.get("nvmlDeviceGetMaxMigDeviceCount", h, conv=int) or 0):
        device = r.get("nvmlDeviceGetMigDeviceHandleByIndex", h, i, conv=lambda d: d)
        if isinstance(device, Refused):
            continue
        devices.append(
            MigDevice(
                uuid=r.get("nvmlDeviceGetUUID", device, conv=_text),
                name=r.get("nvmlDeviceGetName", device, conv=_text),
                memory=r.get("nvmlDeviceGetMemoryInfo", device, conv=_memory),
            )
        )
    return Mig(mode=mode, devices=tuple(devices))


def _fabric(r: Reader, h: Any) -> Maybe[Fabric]:
    """Version 3 adds the health summary; older drivers know version 2 only."""
    answer: Maybe[Fabric] = Refused("FunctionNotFound", FUNCTION_NOT_FOUND)
    for version in (3, 2):
        struct = getattr(r.nv, f"c_nvmlGpuFabricInfo_v{version}_t", None)
        if struct is None:
            continue
        info = struct()
        call = r.get("nvmlDeviceGetGpuFabricInfoV", h, ctypes.byref(info), conv=lambda _: True)
        if isinstance(call, Refused):
            answer = call
            continue
        return Fabric(
            version=version,
            state=int(info.state),
            status=int(info.status),
            clique_id=int(info.cliqueId),
            cluster_uuid=str(uuid.UUID(bytes=bytes(bytearray(info.clusterUuid)))),
            health_mask=int(info.healthMask),
            health_summary=int(info.healthSummary) if version >= 3 else None,
        )
    return answer


def _platform(r: Reader, h: Any) -> Maybe[Platform]:
    """Read by byte offset: the binding decodes ``c_char`` as UTF-8 and raises on any byte above 0x7f."""
    struct = getattr(r.nv, "c_nvmlPlatformInfo_v2_t", None)
    if struct is None:
        return Refused("FunctionNotFound", FUNCTION_NOT_FOUND)
    info = struct()
    call = r.get("nvmlDeviceGetPlatformInfo", h, ctypes.byref(info), conv=lambda _: True)
    if isinstance(call, Refused):
        return call
    raw = ctypes.string_at(ctypes.addressof(info), ctypes.sizeof(info))

    def at(name: str) -> bytes:
        field = getattr(struct, name)
        return raw[field.offset : field.offset + field.size]

    return Platform(
        ib_guid=at("ibGuid").hex(),
        chassis_serial=at("chassisSerialNumber").split(b"\0")[0].decode("ascii", "replace"),
        slot=at("slotNumber")[0],
        tray=at("trayIndex")[0],
        host_id=at("hostId")[0],
        peer_type=at("peerType")[0],
        module_id=at("moduleId")[0],
    )


def _links(r: Reader, h: Any) -> tuple[Link, ...]:
    states: list[Maybe[int]] = []
    for index in range(MAX_LINKS):
        state = r.get("nvmlDeviceGetNvLinkState", h, index, conv=int)
        if isinstance(state, Refused) and state.code in (INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND):
            break  # past the last link, or no NVLink at all
        states.append(state)
    up = [index for index, state in enumerate(states) if state]
    speeds = dict(
        zip(up, r.fields(h, [(FIELD_LINK_SPEED, index) for index in up]) if up else [], strict=True)
    )
    return tuple(_link(r, h, index, state, speeds.get(index)) for index, state in enumerate(states))


def _link(r: Reader, h: Any, index: int, state: Maybe[int], speed: Maybe[int] | None) -> Link:
    if not state:
        return Link(link=index, state=state)
    return Link(
        link=index,
        state=state,
        version=r.get("nvmlDeviceGetNvLinkVersion", h, index, conv=int),
        speed_mb_s=speed,
        remote_type=r.get("nvmlDeviceGetNvLinkRemoteDeviceType", h, index, conv=int),
        remote_pci=r.get("nvmlDeviceGetNvLinkRemotePciInfo", h, index, conv=lambda p: _text(p.busId)),
    )


def _pairs(r: Reader, handles: dict[int, Any]) -> tuple[Pair, ...]:
    return tuple(
        Pair(
            a=a,
            b=b,
            ancestor=r.get("nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b], conv=int),
            p2p=P2p(
                **{
                    name: r.get("nvmlDeviceGetP2PStatus", handles[a], handles[b], cap, conv=int)
                    for name, cap in P2P_CAPS.items()
                }
            ),
        )
        for a in handles
        for b in handles
        if a < b
    )


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _ints(value: Any) -> tuple[int, ...]:
    return tuple(int(v) for v in value)


def _memory(value: Any) -> Memory:
    return Memory(total=int(value.total), free=int(value.free), used=int(value.used))


def _processes(value: Any) -> tuple[GpuProcess, ...]:
    return tuple(
        GpuProcess(
            pid=int(p.pid),
            bytes=None if p.usedGpuMemory in (None, _UNKNOWN_BYTES) else int(p.usedGpuMemory),
        )
        for p in value
    )


def _cpu_list(words: Any) -> str:
    """NVML's affinity words (64 CPUs each) as a kernel CPU list: ``0-31,128-159``."""
    cpus = [64 * w + bit for w, word in enumerate(words) for bit in range(64) if int(word) >> bit & 1]
    runs: list[list[int]] = []
    for cpu in cpus:
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def is_zero(cluster_uuid: str) -> bool:
    """A zero cluster UUID says nothing about other hosts: the GPUs of this baseboard only."""
    return cluster_uuid == ZERO_UUID or not cluster_uuid.strip("0-")
