"""Facts about a host beside its GPUs (``k3ctl.host/1``). ``None`` means: not read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SCHEMA = "k3ctl.host/1"
UNLIMITED = -1
"""A resource limit without a bound."""


@dataclass(frozen=True)
class Cpu:
    """CPU model and logical processors."""

    model: str = "unknown"
    count: int = 0


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node; ``cpus`` is empty for GPU memory that appears as a node (Grace)."""

    node: int
    cpus: str = ""


@dataclass(frozen=True)
class Service:
    """A systemd unit: load state, active state, version of its binary where known."""

    load: str
    active: str
    version: str | None = None


@dataclass(frozen=True)
class Imex:
    """IMEX: channels in /dev, the major number in /proc/devices, and the answer of ``nvidia-imex-ctl -q``."""

    channels: tuple[int, ...] | None = None
    proc_devices_major: int | None = None
    ctl_query: str | None = None


@dataclass(frozen=True)
class Nic:
    """One RDMA device port."""

    name: str
    numa: int
    link_layer: str
    rate_gbps: int
    state: str


@dataclass(frozen=True)
class Disk:
    """Space where ``path`` resolves to; ``role`` is hf-cache or xet-cache, ``shards`` the K3 weight files there."""

    role: str
    path: str
    resolved: str = ""
    total_bytes: int | None = None
    free_bytes: int | None = None
    fs_type: str | None = None
    shards: int | None = None


@dataclass(frozen=True)
class Port:
    """A TCP port that serving needs."""

    number: int
    role: str
    free: bool


@dataclass(frozen=True)
class Process:
    """A process that holds GPU memory; ``name`` is its command, None when it cannot be read.

    ``run``: the live run of ``k3ctl serve`` that it belongs to.
    """

    gpu: int
    pid: int
    name: str | None = None
    bytes: int | None = None
    parent: int | None = None
    run: str | None = None


@dataclass(frozen=True)
class Xid:
    """A GPU fault in the kernel log; ``code`` is None for "fallen off the bus" without a number."""

    bus_id: str
    code: int | None = None
    pid: int | None = None
    process: str | None = None
    text: str = ""


@dataclass(frozen=True)
class ImexNode:
    """One line of the IMEX domain: ``links`` maps a peer's number to its connection state."""

    number: int
    host: str
    name: str | None = None
    status: str = ""
    version: str | None = None
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ImexDomain:
    """``nvidia-imex-ctl -N``: the nodes and how they see each other."""

    status: str
    nodes: tuple[ImexNode, ...] = ()


@dataclass(frozen=True)
class Library:
    """A shared library that a serving process would load, in the order in which it would be found."""

    name: str
    path: str
    version: str | None = None
    origin: str = ""


@dataclass(frozen=True)
class Setting:
    """An environment variable that matters, and who set it."""

    name: str
    value: str
    origin: str = ""


@dataclass(frozen=True)
class Copy:
    """One copy of the run-time probe between two GPUs (NVML indices); ``gb_s`` counts 10⁹ bytes."""

    source: int
    target: int
    peer: bool | None = None
    gb_s: float | None = None
    correct: bool | None = None
    error: str = ""


@dataclass(frozen=True)
class Probe:
    """The run-time probe. ``multicast`` is ``ok``, an error, or None when it was not asked for."""

    copies: tuple[Copy, ...] = ()
    error: str = ""
    multicast: str | None = None


@dataclass(frozen=True)
class Triad:
    """Memory bandwidth of one GPU (NVML index, -1: not matched), 10⁹ bytes a second: the best batch, and the median."""

    gpu: int
    uuid: str = ""
    gb_s: float | None = None
    median_gb_s: float | None = None
    correct: bool | None = None
    error: str = ""


@dataclass(frozen=True)
class Collective:
    """An all-reduce over ``ranks`` GPUs of this host; ``bus_gb_s``: its rate times 2 (n − 1) / n."""

    ranks: int
    bytes: int = 0
    bus_gb_s: float | None = None
    correct: bool | None = None
    nccl: str = ""
    error: str = ""


@dataclass(frozen=True)
class Active:
    """What ``doctor --active`` measured. ``changed``: variables that serve would have otherwise, and how."""

    triads: tuple[Triad, ...] = ()
    collective: Collective | None = None
    error: str = ""
    torch: str = ""
    changed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Host:
    """Facts about one host; ``collected_at`` is unix time in seconds."""

    hostname: str
    collected_at: float | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    cgroup_memory_bytes: int | None = None
    cgroup_cpus: float | None = None
    container: str | None = None
    memlock_bytes: int | None = None
    nofile: int | None = None
    shm_bytes: int | None = None
    disks: tuple[Disk, ...] = ()
    ports: tuple[Port, ...] = ()
    addresses: tuple[str, ...] | None = None
    settings: tuple[Setting, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    libraries: tuple[Library, ...] = ()
    processes: tuple[Process, ...] = ()
    xids: tuple[Xid, ...] | None = None
    imex_domain: ImexDomain | None = None
    device_files: tuple[str, ...] | None = None
    """Device files of GPUs under /dev: with them there, a driver that does not answer is another fault."""
    cuda_error: int | None = None
    """Result of cuInit (CUresult): 0 ok, None when CUDA was not asked or not reached."""
    cuda_problem: str = ""
    """Why the CUDA driver could not be reached."""
    probe: Probe | None = None
    active: Active | None = None
    python: str = ""
    k3ctl: str = ""
