"""Limits, disks, ports, names and processes of the host."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from k3ctl.checks.finding import Area, Hit, Severity, Source, rule
from k3ctl.checks.products import GPU_KINDS
from k3ctl.checks.view import NodeView, size_text
from k3ctl.facts.products import Kind
from k3ctl.gpus.types import Memory
from k3ctl.host.types import UNLIMITED, Disk
from k3ctl.host.values import known

GIB = 2**30
MIN_SHM_BYTES = 16 * GIB
MIN_MEMLOCK_BYTES = 2**40
MIN_NOFILE = 65536
WEIGHT_FILES = 96
WEIGHT_BYTES = 1_560_000_000_000
"""Size of the K3 checkpoint: 96 shards, about 1.56 TB (huggingface.co/moonshotai/Kimi-K3)."""
NETWORK_FS = (
    "nfs",
    "nfs4",
    "lustre",
    "cifs",
    "smb3",
    "ceph",
    "beegfs",
    "gpfs",
    "9p",
    "fuse.sshfs",
    "glusterfs",
)
HOLDS_BYTES = 2 * GIB
"""Memory on an idle GPU above which some process must be holding it (a driver alone keeps below 1 GiB)."""
GPU_OR_UNKNOWN = GPU_KINDS

MEMLOCK = Source("https://github.com/eugr/spark-vllm-docker/issues/389", "2026-09-12")
SHM = Source("https://github.com/vllm-project/vllm/issues/789", "2023-08-18")
DISK = Source("https://github.com/CSCfi/ai-inference-examples/pull/10", "2026-06-05")
NETWORK_LOAD = Source("https://github.com/vllm-project/vllm/issues/29403", "2025-11-25")
SLOW_LOAD = Source("https://github.com/vllm-project/vllm/issues/48031", "2026-07-08")
LOOPBACK = Source("https://github.com/aws-samples/aws-do-eks/pull/50", "2026-08-08")
ORPHAN = Source("https://github.com/Blackwellboy/model-serving-minefield/pull/53", "2026-08-20")
PORT = Source("https://github.com/vllm-project/vllm/issues/7196", "2024-08")
CACHE_DOC = Source(
    "https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables", "2026-11"
)


@rule(
    "host.memlock",
    Severity.FAIL,
    Area.MULTI_NODE,
    "The locked-memory limit is low",
    blocks="RDMA memory registration (NCCL over InfiniBand, KV transfer)",
    remedy="`ulimit -l unlimited`; LimitMEMLOCK=infinity in systemd; `--ulimit memlock=-1` in docker",
    sources=(MEMLOCK, Source("https://github.com/NVIDIA/nccl-tests/issues/206", "2024-04-18")),
    kinds=GPU_OR_UNKNOWN,
)
def memlock(view: NodeView) -> Iterator[Hit]:
    limit = view.host.memlock_bytes if view.host else None
    if limit is not None and limit != UNLIMITED and limit < MIN_MEMLOCK_BYTES:
        rdma = view.product.kind is Kind.UNKNOWN or bool(view.node.nics)
        yield Hit(f"ulimit -l is {limit // 1024} KiB", severity=None if rdma else Severity.WARN)


@rule(
    "host.nofile",
    Severity.WARN,
    Area.HOST,
    "The open-file limit is low",
    blocks="many connections and shards at once",
    remedy="`ulimit -n 1048576`; LimitNOFILE=1048576 in systemd; `--ulimit nofile=1048576` in docker",
    sources=(Source("https://github.com/vllm-project/vllm/issues/7920", "2024-08-27"),),
    kinds=GPU_OR_UNKNOWN,
)
def nofile(view: NodeView) -> Iterator[Hit]:
    limit = view.host.nofile if view.host else None
    if limit is not None and limit != UNLIMITED and limit < MIN_NOFILE:
        yield Hit(f"ulimit -n is {limit}")


@rule(
    "host.shm",
    Severity.FAIL,
    Area.HOST,
    "/dev/shm is small",
    blocks="every group of more than one GPU (NCCL and vLLM exchange buffers there)",
    remedy="docker: `--shm-size 16g` or `--ipc host`; Kubernetes: emptyDir `medium: Memory` at /dev/shm",
    sources=(SHM, Source("https://github.com/vllm-project/production-stack/issues/44", "2025-01-30")),
    kinds=GPU_OR_UNKNOWN,
)
def shm(view: NodeView) -> Iterator[Hit]:
    size = view.host.shm_bytes if view.host else None
    if size is not None and size < MIN_SHM_BYTES:
        yield Hit(f"/dev/shm has {size_text(size)}, {size_text(MIN_SHM_BYTES)} are needed")


def _disks(view: NodeView) -> tuple[Disk, ...]:
    return view.host.disks if view.host else ()


@rule(
    "disk.space",
    Severity.WARN,
    Area.STORAGE,
    "Too little space for the weights",
    blocks="downloading K3 (96 files, about 1.56 TB); weights that lie elsewhere are not affected",
    remedy="point HF_HUB_CACHE (and HF_XET_CACHE) to a larger local disk",
    sources=(DISK, CACHE_DOC),
    kinds=frozenset({Kind.NVL72, Kind.HGX8, Kind.UNKNOWN}),
)
def disk_space(view: NodeView) -> Iterator[Hit]:
    for disk in _disks(view):
        missing = WEIGHT_FILES - (disk.shards or 0)
        wanted = WEIGHT_BYTES * missing // WEIGHT_FILES
        if disk.role == "hf-cache" and disk.free_bytes is not None and disk.free_bytes < wanted:
            there = f", {disk.shards} of {WEIGHT_FILES} files are there" if disk.shards else ""
            yield Hit(f"{size_text(disk.free_bytes)} free at {disk.resolved or disk.path}{there}", disk.role)


@rule(
    "disk.network",
    Severity.WARN,
    Area.STORAGE,
    "The weights are on a network file system",
    blocks="a fast start: vLLM gives up after VLLM_ENGINE_READY_TIMEOUT_S (600 s by default)",
    remedy="copy the weights to local NVMe, or raise the timeout and use `--safetensors-load-strategy eager`",
    sources=(NETWORK_LOAD, SLOW_LOAD),
    kinds=GPU_OR_UNKNOWN,
)
def disk_network(view: NodeView) -> Iterator[Hit]:
    for disk in _disks(view):
        if disk.role == "hf-cache" and disk.fs_type in NETWORK_FS:
            yield Hit(f"{disk.resolved or disk.path} is {disk.fs_type}", disk.role)


@rule(
    "host.name-is-loopback",
    Severity.FAIL,
    Area.MULTI_NODE,
    "The host name resolves to loopback",
    blocks="serving over several nodes: Gloo binds to 127.0.0.1 and the peers cannot connect",
    remedy="fix /etc/hosts, or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the real interface",
    sources=(LOOPBACK,),
    kinds=GPU_OR_UNKNOWN,
)
def loopback(view: NodeView) -> Iterator[Hit]:
    addresses = view.host.addresses if view.host else None
    if addresses and all(_is_loopback(address) for address in addresses):
        several = view.product.kind in (Kind.NVL72, Kind.UNKNOWN)
        interface = view.setting("GLOO_SOCKET_IFNAME")
        if not interface:
            yield Hit(
                f"{view.node.hostname} → {', '.join(addresses)}", severity=None if several else Severity.WARN
            )


@rule(
    "host.name-unresolved",
    Severity.WARN,
    Area.MULTI_NODE,
    "The host name does not resolve",
    blocks="serving over several nodes",
    remedy="add the host to DNS or /etc/hosts",
    sources=(LOOPBACK,),
    kinds=GPU_OR_UNKNOWN,
)
def unresolved(view: NodeView) -> Iterator[Hit]:
    if view.host and view.host.addresses == ():
        yield Hit(f"no address for {view.node.hostname}")


@rule(
    "host.port-in-use",
    Severity.WARN,
    Area.HOST,
    "A port that serving uses is taken",
    blocks="`k3ctl serve` on that port",
    remedy="choose another port with `--port`, or find the holder with `ss -ltnp`",
    sources=(PORT,),
)
def port_in_use(view: NodeView) -> Iterator[Hit]:
    for port in view.host.ports if view.host else ():
        if not port.free:
            yield Hit(f"port {port.number} ({port.role}) cannot be bound")


@rule(
    "gpu.memory-held",
    Severity.WARN,
    Area.GPU,
    "A process holds GPU memory",
    blocks="starting an engine that wants this memory",
    remedy="if it is left over, end it: the command is in the evidence (k3ctl ends nothing by itself)",
    sources=(ORPHAN, Source("https://github.com/vllm-project/vllm/issues/32116", "2026-01-11")),
)
def memory_held(view: NodeView) -> Iterator[Hit]:
    named = {(process.gpu, process.pid): process for process in (view.host.processes if view.host else ())}
    for gpu in view.node.present:
        held = [p for p in known(gpu.processes, ()) if p.bytes is None or p.bytes >= HOLDS_BYTES]
        for process in held:
            found = named.get((gpu.index, process.pid))
            name = (found.name if found else None) or "a process outside this container"
            size = size_text(process.bytes) if process.bytes else "an unknown amount"
            if found and found.run:
                own = f"run `{found.run}` (pid {process.pid}) holds {size}: `k3ctl stop {found.run}` ends it"
                yield Hit(own, gpu.label, remedy="nothing to do while it serves what it should")
                continue
            orphan = ", its parent is gone" if found and found.parent == 1 else ""
            yield Hit(f"pid {process.pid} ({name}) holds {size}{orphan}: `kill {process.pid}`", gpu.label)
        if not held and isinstance(gpu.memory, Memory) and gpu.memory.used >= HOLDS_BYTES:
            yield Hit(
                f"{size_text(gpu.memory.used)} used, no process visible from here",
                gpu.label,
                remedy="look on the host, outside this container: `nvidia-smi`",
            )


@rule(
    "host.cgroup-memory",
    Severity.WARN,
    Area.HOST,
    "The container's memory limit is far below the host's memory",
    blocks="loading weights through the page cache",
    remedy="raise the container's memory limit",
    sources=(Source("https://docs.kernel.org/admin-guide/cgroup-v2.html", "2026-11", "memory.max"),),
    kinds=frozenset({Kind.NVL72, Kind.HGX8}),
)
def cgroup_memory(view: NodeView) -> Iterator[Hit]:
    host = view.host
    if not host or not host.cgroup_memory_bytes or not host.memory_total_bytes:
        return
    if host.cgroup_memory_bytes < 64 * GIB * max(1, len(view.node.present)):
        yield Hit(
            f"limit {size_text(host.cgroup_memory_bytes)}, host has {size_text(host.memory_total_bytes)}"
        )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
