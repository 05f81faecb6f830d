"""What one or several hosts know about their GPUs: the ``k3ctl.nvml/1`` snapshot.

Units are NVML's own: bytes, mW, MHz, °C, and MB/s per link and direction. A value that NVML refused, or that
a text capture does not carry, is a ``Refused``: it is falsy, and it keeps the reason, because *NotSupported*,
*NoPermission* and *GpuIsLost* mean different things. JSON writes it as ``{"na": name, "code":
nvmlReturn_t}``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from k3ctl.host.types import Cpu, Imex, Nic, NumaNode, Service
from k3ctl.host.values import NOT_CAPTURED, Maybe, Refused, known

SCHEMA = "k3ctl.nvml/1"
ZERO_UUID = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True)
class Pci:
    """PCI identity; ``device_id`` is ``0xDDDDVVVV`` (device, vendor)."""

    bus_id: Maybe[str] = NOT_CAPTURED
    device_id: Maybe[str] = NOT_CAPTURED
    gen: Maybe[int] = NOT_CAPTURED
    gen_max: Maybe[int] = NOT_CAPTURED
    width: Maybe[int] = NOT_CAPTURED
    width_max: Maybe[int] = NOT_CAPTURED


@dataclass(frozen=True)
class Memory:
    """Device memory in bytes."""

    total: int
    free: int
    used: int


@dataclass(frozen=True)
class Power:
    """Power in mW."""

    draw: Maybe[int] = NOT_CAPTURED
    limit: Maybe[int] = NOT_CAPTURED
    default: Maybe[int] = NOT_CAPTURED
    range: Maybe[tuple[int, ...]] = NOT_CAPTURED


@dataclass(frozen=True)
class Temperature:
    """Temperatures in °C; ``margin`` is the distance to the slowdown limit."""

    gpu: Maybe[int] = NOT_CAPTURED
    memory: Maybe[int] = NOT_CAPTURED
    margin: Maybe[int] = NOT_CAPTURED


@dataclass(frozen=True)
class Clocks:
    """Clocks in MHz."""

    sm: Maybe[int] = NOT_CAPTURED
    memory: Maybe[int] = NOT_CAPTURED
    sm_max: Maybe[int] = NOT_CAPTURED
    memory_max: Maybe[int] = NOT_CAPTURED


@dataclass(frozen=True)
class Utilization:
    """Utilization in percent of the last sample period."""

    gpu: int
    memory: int


@dataclass(frozen=True)
class Ecc:
    """ECC mode (current, pending) and error totals."""

    mode: Maybe[tuple[int, ...]] = NOT_CAPTURED
    volatile_corrected: Maybe[int] = NOT_CAPTURED
    volatile_uncorrected: Maybe[int] = NOT_CAPTURED
    aggregate_uncorrected: Maybe[int] = NOT_CAPTURED


@dataclass(frozen=True)
class RemappedRows:
    """Row remapper: counts, and whether a remap waits for a reset or has failed."""

    corrected: int
    uncorrected: int
    pending: int
    failure: int


@dataclass(frozen=True)
class MigDevice:
    """One MIG instance."""

    uuid: Maybe[str] = NOT_CAPTURED
    name: Maybe[str] = NOT_CAPTURED
    memory: Maybe[Memory] = NOT_CAPTURED


@dataclass(frozen=True)
class Mig:
    """MIG mode (current, pending) and the instances."""

    mode: Maybe[tuple[int, ...]] = NOT_CAPTURED
    devices: tuple[MigDevice, ...] = ()


@dataclass(frozen=True)
class Fabric:
    """``nvmlGpuFabricInfo``: registration with the NVLink fabric.

    ``state`` 0 not supported, 1 not started, 2 in progress, 3 completed; ``status`` (nvmlReturn_t) is valid
    in state 3 only. ``health_summary`` 0 n/a, 1 healthy, 2 unhealthy, 3 limited capacity, None before version
    3. What a file does not hold keeps a value that is no success.
    """

    version: int = 0
    state: int = -1
    status: int = -1
    clique_id: int = -1
    cluster_uuid: str = ZERO_UUID
    health_mask: Maybe[int] = NOT_CAPTURED
    health_summary: int | None = None


@dataclass(frozen=True)
class Platform:
    """Where the module sits in the rack; ``ib_guid`` is raw hex (the binding cannot decode it)."""

    ib_guid: str = ""
    chassis_serial: str = ""
    slot: int = 0
    tray: int = 0
    host_id: int = 0
    peer_type: int = 0
    module_id: int = 0


@dataclass(frozen=True)
class Link:
    """One NVLink: ``state`` 1 up; ``remote_type`` 0 GPU, 1 NPU, 2 switch, 255 unknown."""

    link: int
    state: Maybe[int]
    version: Maybe[int] | None = None
    speed_mb_s: Maybe[int] | None = None
    remote_type: Maybe[int] | None = None
    remote_pci: Maybe[str] | None = None


@dataclass(frozen=True)
class GpuProcess:
    """A compute process on a GPU, as NVML names it."""

    pid: int
    bytes: int | None = None


@dataclass(frozen=True)
class Gpu:
    """One GPU. ``handle`` is set, and everything else is not, when NVML could not even open it."""

    index: int
    handle: Refused | None = None
    uuid: Maybe[str] = NOT_CAPTURED
    name: Maybe[str] = NOT_CAPTURED
    serial: Maybe[str] = NOT_CAPTURED
    minor: Maybe[int] = NOT_CAPTURED
    module_id: Maybe[int] = NOT_CAPTURED
    vbios: Maybe[str] = NOT_CAPTURED
    architecture: Maybe[int] = NOT_CAPTURED
    compute_capability: Maybe[tuple[int, ...]] = NOT_CAPTURED
    pci: Pci = Pci()
    memory: Maybe[Memory] = NOT_CAPTURED
    bar1_total: Maybe[int] = NOT_CAPTURED
    power_mw: Power = Power()
    temperature_c: Temperature = Temperature()
    clocks_mhz: Clocks = Clocks()
    clock_event_reasons: Maybe[int] = NOT_CAPTURED
    pstate: Maybe[int] = NOT_CAPTURED
    utilization: Maybe[Utilization] = NOT_CAPTURED
    persistence: Maybe[int] = NOT_CAPTURED
    compute_mode: Maybe[int] = NOT_CAPTURED
    virtualization: Maybe[int] = NOT_CAPTURED
    addressing_mode: Maybe[int] = NOT_CAPTURED
    ecc: Ecc = Ecc()
    remapped_rows: Maybe[RemappedRows] = NOT_CAPTURED
    recovery_action: Maybe[int] = NOT_CAPTURED
    c2c: Maybe[int] = NOT_CAPTURED
    gpu_numa_node: Maybe[int] = NOT_CAPTURED
    cpu_affinity: Maybe[str] = NOT_CAPTURED
    numa_affinity: Maybe[str] = NOT_CAPTURED
    nic_paths: Mapping[str, str] = field(default_factory=dict)
    """How the way to each NIC crosses the host, by the NIC's name: PIX, PXB, PHB, NODE or SYS."""
    mig: Mig = Mig()
    fabric: Maybe[Fabric] = NOT_CAPTURED
    platform: Maybe[Platform] = NOT_CAPTURED
    links: Maybe[tuple[Link, ...]] = NOT_CAPTURED
    processes: Maybe[tuple[GpuProcess, ...]] = NOT_CAPTURED

    @property
    def label(self) -> str:
        """How people find this GPU: index and, where known, PCI bus id."""
        bus = known(self.pci.bus_id, "")
        return f"GPU {self.index} ({bus})" if bus else f"GPU {self.index}"

    @property
    def in_mig_mode(self) -> bool:
        """MIG is on, or instances are listed."""
        mode = known(self.mig.mode, ())
        return bool(self.mig.devices) or bool(mode and mode[0])

    @property
    def links_up(self) -> int:
        """How many NVLinks report state 1."""
        return sum(known(link.state, 0) == 1 for link in self.links)


@dataclass(frozen=True)
class P2p:
    """``nvmlDeviceGetP2PStatus`` per capability: 0 is ok, anything else is not."""

    read: Maybe[int] = NOT_CAPTURED
    write: Maybe[int] = NOT_CAPTURED
    nvlink: Maybe[int] = NOT_CAPTURED
    atomics: Maybe[int] = NOT_CAPTURED


@dataclass(frozen=True)
class Pair:
    """Two GPUs of one host; ``ancestor`` is nvmlGpuTopologyLevel (0 … 50)."""

    a: int
    b: int
    ancestor: Maybe[int] = NOT_CAPTURED
    p2p: P2p = P2p()


@dataclass(frozen=True)
class CudaDevice:
    """CUDA driver attributes of one GPU, 1 supported: they say what the hardware can, not what it may."""

    index: int
    multicast: int
    fabric_handle: int
    posix_fd_handle: int
    gpudirect_rdma: int
    dma_buf: int


@dataclass(frozen=True)
class ConfidentialCompute:
    """``nvmlSystemGetConfComputeState``."""

    feature: int
    environment: int
    dev_tools: int


@dataclass(frozen=True)
class NvmlSystem:
    """The driver, or the error with which NVML did not start."""

    error: Refused | None = None
    driver: str | None = None
    nvml: str | None = None
    cuda_driver: int | None = None
    confidential_compute: Maybe[ConfidentialCompute] | None = None


@dataclass(frozen=True)
class Node:
    """One host."""

    hostname: str
    arch: str = ""
    kernel: str = ""
    virt: str = "none"
    cpu: Cpu = Cpu()  # noqa: RUF009
    memory_kib: int = 0
    numa: tuple[NumaNode, ...] = ()
    nvml: NvmlSystem = NvmlSystem()
    services: Mapping[str, Service] = field(default_factory=dict)
    imex: Maybe[Imex] = NOT_CAPTURED
    env: Maybe[Mapping[str, str]] = NOT_CAPTURED
    gpus: tuple[Gpu, ...] = ()
    pairs: Maybe[tuple[Pair, ...]] = NOT_CAPTURED
    cuda: Maybe[tuple[CudaDevice, ...]] = NOT_CAPTURED
    nics: tuple[Nic, ...] = ()

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that were read; empty where nobody looked."""
        return known(self.env, {})

    @property
    def present(self) -> tuple[Gpu, ...]:
        """The GPUs that NVML could open."""
        return tuple(gpu for gpu in self.gpus if gpu.handle is None)


@dataclass(frozen=True)
class Snapshot:
    """GPU facts of one or more hosts."""

    nodes: tuple[Node, ...] = ()
    meta: Mapping[str, object] = field(default_factory=dict)

    def gpus(self) -> Iterator[tuple[Node, Gpu]]:
        """Every GPU that NVML could open, with its host."""
        for node in self.nodes:
            for gpu in node.present:
                yield node, gpu
