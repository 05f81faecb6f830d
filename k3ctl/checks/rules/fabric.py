"""NVLink fabric registration and health; the fabric manager on boards that run their own."""

from __future__ import annotations

from collections.abc import Iterator

from k3ctl.checks.domains import COMPLETED, HealthMask, unhealthy
from k3ctl.checks.finding import Area, Hit, Severity, Source, rule
from k3ctl.checks.products import SWITCHED
from k3ctl.checks.view import NodeView
from k3ctl.facts.products import Kind
from k3ctl.gpus.nvml import is_zero
from k3ctl.gpus.types import Fabric, Gpu
from k3ctl.host.values import known

FABRIC_API = Source("https://docs.nvidia.com/deploy/nvml-api/structnvmlGpuFabricInfo__v3__t.html", "2026-01")
FABRIC_MASK = Source("https://docs.nvidia.com/deploy/nvml-api/group__nvmlFabricDefs.html", "2026-01")
STATUS_NOT_STATE = Source("https://github.com/Azure/azhpc-images/pull/506", "2026-03-28")
PRODUCT_MEANING = Source("https://github.com/leptonai/gpud/pull/1108", "2025-10-16")
NO_LOCAL_FM = Source("https://github.com/leptonai/gpud/pull/1106", "2025-10-15")
FM_VERSION = Source("https://github.com/siderolabs/extensions/pull/717", "2025-05-31")
HEALTH = Source("https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/issues/626", "2025-09-26")
NOT_STARTED, IN_PROGRESS = 1, 2
STATUS_NAMES = {23: "Insufficient Resources", 999: "Unknown Error"}
CONFIGURATION = {
    2: "system GUID",
    3: "chassis serial",
    4: "no partition",
    5: "too few NVLinks",
    6: "GPU firmware",
    7: "location",
    8: "GPU state",
}
NVLINK_USE = "NVLink, NCCL's NVLS and every tensor-parallel profile"


def _fabrics(view: NodeView) -> Iterator[tuple[Gpu, Fabric]]:
    for gpu in view.node.present:
        if isinstance(gpu.fabric, Fabric):
            yield gpu, gpu.fabric


@rule(
    "fabric.in-progress",
    Severity.FAIL,
    Area.NVLINK,
    "Fabric registration is not finished",
    blocks=NVLINK_USE,
    remedy="wait a minute, run again; then check the fabric manager (HGX) or the switch trays (NVL72)",
    sources=(Source("https://github.com/NVIDIA/gpu-operator/issues/2511", "2026-06-02"), FABRIC_API),
    kinds=SWITCHED,
)
def in_progress(view: NodeView) -> Iterator[Hit]:
    states = list(_fabrics(view))
    if any(fabric.state == IN_PROGRESS for _, fabric in states):
        for gpu, fabric in states:
            if fabric.state in (NOT_STARTED, IN_PROGRESS):
                yield Hit(
                    f"fabric state {fabric.state} ({'in progress' if fabric.state == 2 else 'not started'})",
                    gpu.label,
                )


@rule(
    "fabric.not-started",
    Severity.FAIL,
    Area.NVLINK,
    "Fabric registration has not started",
    blocks=NVLINK_USE,
    remedy="start the fabric manager (HGX), or check the NVLink switch trays and their manager (NVL72)",
    sources=(FABRIC_API, FM_VERSION),
    kinds=SWITCHED,
)
def not_started(view: NodeView) -> Iterator[Hit]:
    states = list(_fabrics(view))
    if not any(fabric.state == IN_PROGRESS for _, fabric in states):
        for gpu, fabric in states:
            if fabric.state == NOT_STARTED:
                yield Hit("fabric state 1 (not started)", gpu.label)


@rule(
    "fabric.status",
    Severity.FAIL,
    Area.NVLINK,
    "Registration is completed, its status is not success",
    blocks=NVLINK_USE,
    remedy="check the partition and the fabric manager's log; state `Completed` alone is no proof",
    sources=(STATUS_NOT_STATE, FABRIC_API),
    kinds=SWITCHED,
)
def status(view: NodeView) -> Iterator[Hit]:
    for gpu, fabric in _fabrics(view):
        if fabric.state == COMPLETED and fabric.status:
            name = STATUS_NAMES.get(fabric.status, "nvmlReturn_t")
            yield Hit(f"state completed, status {fabric.status} ({name})", gpu.label)


@rule(
    "fabric.not-supported",
    Severity.FAIL,
    Area.NVLINK,
    "A rack GPU reports that it has no fabric",
    blocks="every group larger than one GPU",
    remedy="update the driver and the GPU firmware; check the tray's NVLink cabling and switch trays",
    sources=(PRODUCT_MEANING,),
    kinds=frozenset({Kind.NVL72}),
)
def not_supported(view: NodeView) -> Iterator[Hit]:
    for gpu, fabric in _fabrics(view):
        if fabric.state == 0:
            yield Hit("fabric state 0 (not supported)", gpu.label)


@rule(
    "fabric.unknown-state",
    Severity.WARN,
    Area.NVLINK,
    "A fabric state that this k3ctl does not know",
    blocks="the verdict on NVLink",
    remedy="update k3ctl; until then read `nvidia-smi -q` by eye",
    sources=(FABRIC_API,),
    kinds=SWITCHED,
)
def unknown_state(view: NodeView) -> Iterator[Hit]:
    for gpu, fabric in _fabrics(view):
        if fabric.state not in (0, NOT_STARTED, IN_PROGRESS, COMPLETED):
            yield Hit(f"fabric state {fabric.state}", gpu.label)


@rule(
    "fabric.no-cluster",
    Severity.FAIL,
    Area.NVLINK,
    "A rack GPU is registered without a cluster UUID",
    blocks="every group over more than one tray",
    remedy="assign the tray to an NVLink partition and reset the GPUs",
    sources=(STATUS_NOT_STATE,),
    kinds=frozenset({Kind.NVL72}),
)
def no_cluster(view: NodeView) -> Iterator[Hit]:
    for gpu, fabric in _fabrics(view):
        if fabric.state == COMPLETED and fabric.status == 0 and is_zero(fabric.cluster_uuid):
            yield Hit("zero cluster UUID", gpu.label)


@rule(
    "fabric.health-not-reported",
    Severity.INFO,
    Area.NVLINK,
    "Registered, and the driver reports no health",
    remedy="nothing to do; a newer driver also reports bandwidth and route health",
    sources=(PRODUCT_MEANING,),
    kinds=frozenset({Kind.NVL72}),
)
def health_not_reported(view: NodeView) -> Iterator[Hit]:
    for gpu, fabric in _fabrics(view):
        if (
            fabric.state == COMPLETED
            and fabric.status == 0
            and not (fabric.health_mask or fabric.health_summary)
        ):
            yield Hit(f"state completed, clique {fabric.clique_id}, health not supported", gpu.label)


@rule(
    "fabric.unhealthy",
    Severity.FAIL,
    Area.NVLINK,
    "The fabric must not be used through this GPU",
    blocks="any group that includes this GPU",
    remedy="take the GPU out of the group; reset it, then check its NVLinks and the switch tray's log",
    sources=(
        HEALTH,
        Source("https://github.com/NVIDIA/nccl/issues/2186", "2026-05", "0xAA is healthy"),
        FABRIC_API,
    ),
    kinds=SWITCHED,
)
def unhealthy_gpu(view: NodeView) -> Iterator[Hit]:
    for gpu, fabric in _fabrics(view):
        if not unhealthy(gpu):
            continue
        health = HealthMask.of(fabric)
        what = ["route unhealthy"] * health.route_unhealthy
        if health.incorrect_configuration > 1:
            number = health.incorrect_configuration
            what.append(f"incorrect configuration: {CONFIGURATION.get(number, f'code {number}')}")
        if fabric.health_summary == 2:
            what.append("summary unhealthy")
        yield Hit(f"{', '.join(what)} (health mask {known(fabric.health_mask, 0):#x})", gpu.label)


@rule(
    "fabric.degraded",
    Severity.WARN,
    Area.NVLINK,
    "The fabric works with less capacity",
    blocks="full NVLink bandwidth; a tensor-parallel group runs at its slowest GPU",
    remedy="check the links of this GPU with `nvidia-smi nvlink -s`, then cables and switch tray",
    sources=(HEALTH, FABRIC_API),
    kinds=SWITCHED,
)
def degraded(view: NodeView) -> Iterator[Hit]:
    for gpu, fabric in _fabrics(view):
        health = HealthMask.of(fabric)
        what = ["bandwidth degraded"] * health.degraded_bandwidth
        what += ["route recovery in progress"] * health.route_recovery
        what += ["access timeout recovery"] * health.access_timeout_recovery
        what += ["limited capacity"] * (fabric.health_summary == 3)
        if what and not unhealthy(gpu):
            yield Hit(f"{', '.join(what)} (health mask {known(fabric.health_mask, 0):#x})", gpu.label)


@rule(
    "fabric.no-partition",
    Severity.WARN,
    Area.NVLINK,
    "The driver says that the GPU is in no NVLink partition",
    blocks="groups over this GPU, unless the whole rack is one default partition",
    remedy="assign the GPU to a partition with the rack's NVLink management software, then reset it",
    sources=(FABRIC_MASK,),
    kinds=frozenset({Kind.NVL72}),
)
def no_partition(view: NodeView) -> Iterator[Hit]:
    for gpu, fabric in _fabrics(view):
        if HealthMask.of(fabric).partition_unassigned:
            yield Hit(f"health mask {known(fabric.health_mask, 0):#x}", gpu.label)


@rule(
    "fabric.manager-disconnected",
    Severity.WARN,
    Area.NVLINK,
    "The rack's fabric manager does not reach the GPU",
    blocks="repair of routes after the next fault",
    remedy="check the manager on the NVLink switch trays",
    sources=(FABRIC_MASK,),
    kinds=frozenset({Kind.NVL72}),
)
def manager_disconnected(view: NodeView) -> Iterator[Hit]:
    for gpu, fabric in _fabrics(view):
        if HealthMask.of(fabric).manager_disconnected:
            yield Hit(f"health mask {known(fabric.health_mask, 0):#x}", gpu.label)


@rule(
    "fabric.no-handles",
    Severity.FAIL,
    Area.MULTI_NODE,
    "CUDA offers no fabric handles",
    blocks="sharing GPU memory between trays",
    remedy="check the fabric state, and that the IMEX channel is visible in this container",
    sources=(Source("https://github.com/microsoft/mscclpp/issues/467", "2025-02-24"), FABRIC_API),
    kinds=frozenset({Kind.NVL72}),
)
def no_handles(view: NodeView) -> Iterator[Hit]:
    without = [str(device.index) for device in view.node.cuda if not device.fabric_handle]
    if without:
        yield Hit(f"CUDA attribute HANDLE_TYPE_FABRIC_SUPPORTED is 0 on GPU {', '.join(without)}")


@rule(
    "fabricmanager.inactive",
    Severity.FAIL,
    Area.NVLINK,
    "The fabric manager is installed and not running",
    blocks="CUDA itself on an HGX board (error 802)",
    remedy="sudo systemctl enable --now nvidia-fabricmanager",
    sources=(FM_VERSION, NO_LOCAL_FM),
    kinds=frozenset({Kind.HGX8}),
)
def manager_inactive(view: NodeView) -> Iterator[Hit]:
    manager = view.node.services.get("nvidia-fabricmanager")
    if manager and manager.load != "not-found" and manager.active != "active":
        yield Hit(f"nvidia-fabricmanager is {manager.active}")


@rule(
    "fabricmanager.version-mismatch",
    Severity.FAIL,
    Area.NVLINK,
    "Fabric manager and driver have different versions",
    blocks="NVSwitch initialization after the next start (CUDA error 802)",
    remedy="install the fabric manager of exactly the driver's version",
    sources=(FM_VERSION,),
    kinds=frozenset({Kind.HGX8}),
)
def manager_version(view: NodeView) -> Iterator[Hit]:
    manager, driver = view.node.services.get("nvidia-fabricmanager"), view.node.nvml.driver
    if manager and manager.version and driver and manager.version != driver:
        yield Hit(f"fabric manager {manager.version}, driver {driver}")


@rule(
    "fabricmanager.not-visible",
    Severity.INFO,
    Area.NVLINK,
    "The fabric manager is outside this host",
    remedy="nothing to do while the fabric state is completed: the hypervisor or the host runs it",
    sources=(FABRIC_API,),
    kinds=frozenset({Kind.HGX8}),
)
def manager_not_visible(view: NodeView) -> Iterator[Hit]:
    manager = view.node.services.get("nvidia-fabricmanager")
    completed = any(fabric.state == COMPLETED for _, fabric in _fabrics(view))
    if manager and manager.load == "not-found" and manager.active != "active" and completed:
        yield Hit("no nvidia-fabricmanager unit here, fabric state completed")


@rule(
    "nvlsm.inactive",
    Severity.FAIL,
    Area.NVLINK,
    "The NVLink subnet manager is installed and not running",
    blocks="NVSwitch initialization on HGX B200 and B300",
    remedy="sudo systemctl restart nvidia-fabricmanager (it starts nvlsm), then read its journal",
    sources=(FM_VERSION,),
    kinds=frozenset({Kind.HGX8}),
)
def nvlsm_inactive(view: NodeView) -> Iterator[Hit]:
    service = view.node.services.get("nvlsm")
    if view.product.specialized and service and service.load == "loaded" and service.active != "active":
        yield Hit(f"nvlsm is {service.active}")
