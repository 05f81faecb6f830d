"""Single GPUs: presence, memory health, reset requests, throttling, MIG."""

from __future__ import annotations

from collections.abc import Iterator

from k3ctl.checks.finding import Area, Hit, Severity, Source, rule
from k3ctl.checks.products import SWITCHED, chip_of
from k3ctl.checks.view import NodeView
from k3ctl.facts.products import Kind
from k3ctl.gpus.types import Gpu, Memory
from k3ctl.host.values import Refused, known

NVML_DEVICE = Source("https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html", "2026-11")
GPU_MEMORY = Source(
    "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html", "2026-11", "row remapping"
)
RECOVERY_FLAGS = Source(
    "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html", "2026-11"
)
RECOVERY = Source("https://github.com/utkuozdemir/nvidia_gpu_exporter/pull/448", "2026-07-06")
GPU_IS_LOST = 15
SAME_MEMORY = 0.98
"""Share of the largest memory above which two GPUs have the same; firmware reserves slightly different amounts."""
SHORT_BOARDS = {3: 4, 5: 8, 6: 8, 7: 8}
"""GPUs seen on one switch → GPUs of the smallest board or tray that may hold them."""
HW_THERMAL, HW_SLOWDOWN, POWER_BRAKE, SW_THERMAL = 0x40, 0x8, 0x80, 0x20

RECOVERY_ACTIONS = {
    1: ("gpu.reset", "GPU reset"),
    2: ("gpu.node-reboot", "node reboot"),
    3: ("gpu.drain-p2p", "drain peer-to-peer work"),
    4: ("gpu.drain-and-reset", "drain and reset"),
    5: ("gpu.recover-imex", "recover the IMEX domain"),
    6: ("gpu.bus-reset", "bus reset"),
    7: ("gpu.system-reboot", "system reboot"),
}


@rule(
    "gpu.lost",
    Severity.FAIL,
    Area.GPU,
    "A GPU cannot be opened",
    blocks="any group that includes this GPU",
    remedy="read `dmesg | grep -i nvrm`; reset the GPU or reboot, then call the vendor if it happens again",
    sources=(Source("https://github.com/XuehaiPan/nvitop/issues/139", "2024-11-19"), NVML_DEVICE),
)
def lost(view: NodeView) -> Iterator[Hit]:
    for gpu in view.node.gpus:
        if gpu.handle is not None:
            yield Hit(f"NVML: {gpu.handle.na} (code {gpu.handle.code})", gpu.label)
        elif isinstance(gpu.uuid, Refused) and gpu.uuid.code == GPU_IS_LOST:
            yield Hit("NVML: GpuIsLost (code 15)", gpu.label)


@rule(
    "gpu.missing",
    Severity.FAIL,
    Area.GPU,
    "Fewer GPUs than the product has",
    blocks="tensor parallelism over the whole board",
    remedy="read `dmesg` and `lspci | grep -i nvidia`; reseat or reset the missing GPU before serving",
    sources=(Source("https://github.com/NVIDIA/gpu-operator/issues/2511", "2026-06-02", "7 of 8 attached"),),
    kinds=SWITCHED | {Kind.UNKNOWN},
)
def missing(view: NodeView) -> Iterator[Hit]:
    expected, seen = view.product.expected_gpus or _on_a_switch(view), len(view.node.gpus)
    if expected is None or seen >= expected or view.node.virt == "container":
        return
    if view.product.kind is Kind.NVL72 and seen in (1, 2) and view.node.virt != "none":
        return
    yield Hit(f"{seen} of {expected} GPUs visible")


def _on_a_switch(view: NodeView) -> int | None:
    """GPUs that a board of an unknown product should have, when all that are seen reach each other over NVLink."""
    seen = len(view.node.present)
    joined = [known(pair.p2p.nvlink, -1) == 0 for pair in view.node.pairs]
    if seen not in SHORT_BOARDS or len(joined) != seen * (seen - 1) // 2 or not all(joined):
        return None
    return SHORT_BOARDS[seen]


@rule(
    "product.odd-gpu",
    Severity.FAIL,
    Area.GPU,
    "A GPU is of another product than the others of its board",
    blocks="any group that includes this GPU",
    remedy="have the module replaced by one of the board's product; until then leave this GPU out",
    sources=(NVML_DEVICE,),
)
def odd_gpu(view: NodeView) -> Iterator[Hit]:
    """A display card beside a whole board is none of it; one in the place of a module is."""
    chips = {gpu.index: chip_of(known(gpu.name, "")) for gpu in view.node.present if known(gpu.name, "")}
    usual = view.product.chip
    odd = [index for index, chip in chips.items() if chip != usual]
    whole = len(chips) - len(odd) >= (view.product.expected_gpus or len(chips))
    if not usual or not odd or whole:
        return
    for gpu in view.node.present:
        if gpu.index in odd:
            count = len(chips) - len(odd)
            what = f"is {gpu.name}; the other {count} GPUs of the board have the chip {usual}"
            yield Hit(f"GPU {gpu.index} {what}", gpu.label)


@rule(
    "product.odd-memory",
    Severity.WARN,
    Area.GPU,
    "A GPU has less memory than the others of this host",
    blocks="the use of the others' memory: a tensor-parallel group takes what its smallest GPU has",
    remedy="compare `nvidia-smi -q` of this GPU with the others; a module of another variant, or retired memory",
    sources=(NVML_DEVICE,),
)
def odd_memory(view: NodeView) -> Iterator[Hit]:
    sizes = [(gpu, gpu.memory.total) for gpu in _same_chip(view) if isinstance(gpu.memory, Memory)]
    most = max((size for _, size in sizes), default=0)
    for gpu, size in sizes:
        if size < most * SAME_MEMORY:
            yield Hit(f"{size / 2**30:.1f} GiB, another has {most / 2**30:.1f} GiB", gpu.label)


def _same_chip(view: NodeView) -> list[Gpu]:
    return [gpu for gpu in view.node.present if chip_of(known(gpu.name, "")) == view.product.chip]


@rule(
    "gpu.subset",
    Severity.INFO,
    Area.GPU,
    "This container sees a part of the board",
    blocks="",
    remedy="start the container with all GPUs if it should serve with all of them",
    sources=(Source("https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/", "2026-11"),),
    kinds=SWITCHED,
)
def subset(view: NodeView) -> Iterator[Hit]:
    expected, seen = view.product.expected_gpus, len(view.node.gpus)
    if expected is not None and seen < expected and view.node.virt == "container":
        yield Hit(f"{seen} of {expected} GPUs visible in this container")


@rule(
    "gpu.unknown-product",
    Severity.INFO,
    Area.GPU,
    "k3ctl does not know this product",
    blocks="the verdict on fabric, domain and multicast",
    remedy="update k3ctl; what does not depend on the product was judged",
    sources=(NVML_DEVICE,),
    kinds=frozenset({Kind.UNKNOWN}),
)
def unknown_product(view: NodeView) -> Iterator[Hit]:
    names = dict.fromkeys(known(gpu.name, "") for gpu in view.node.present)
    if any(names):
        yield Hit(", ".join(filter(None, names)))


@rule(
    "mig.enabled",
    Severity.FAIL,
    Area.GPU,
    "MIG is on",
    blocks="K3: it needs whole GPUs, and MIG instances have no NVLink",
    remedy="drain the GPU and turn MIG off: `sudo nvidia-smi -i INDEX -mig 0`",
    sources=(Source("https://github.com/vllm-project/vllm/issues/41848", "2026-05-06"),),
)
def mig_enabled(view: NodeView) -> Iterator[Hit]:
    for gpu in view.node.present:
        if gpu.in_mig_mode:
            yield Hit(f"MIG mode on, {len(gpu.mig.devices)} instance(s)", gpu.label)


@rule(
    "memory.unified",
    Severity.INFO,
    Area.GPU,
    "The GPU shares the host's memory",
    remedy="judge memory by the host's available memory, not by NVML",
    sources=(NVML_DEVICE,),
    kinds=frozenset({Kind.UNIFIED}),
)
def unified(view: NodeView) -> Iterator[Hit]:
    for gpu in view.node.present:
        if isinstance(gpu.memory, Refused):
            yield Hit(
                f"NVML memory: {gpu.memory.na}; host has {view.node.memory_kib / 2**20:.0f} GiB", gpu.label
            )


@rule(
    "memory.remap-pending",
    Severity.WARN,
    Area.GPU,
    "A memory row remap waits for a reset",
    remedy="running work is not affected; drain and reset it when convenient: `sudo nvidia-smi -r -i INDEX`",
    sources=(RECOVERY_FLAGS, GPU_MEMORY),
)
def remap_pending(view: NodeView) -> Iterator[Hit]:
    for gpu in view.node.present:
        if gpu.remapped_rows and gpu.remapped_rows.pending:
            rows = gpu.remapped_rows
            yield Hit(
                f"pending; remapped rows: {rows.uncorrected} uncorrected, {rows.corrected} corrected",
                gpu.label,
            )


@rule(
    "memory.remap-failure",
    Severity.FAIL,
    Area.GPU,
    "A memory row could not be remapped",
    blocks="any group that includes this GPU",
    remedy="take the GPU out of service and have it replaced",
    sources=(GPU_MEMORY,),
)
def remap_failure(view: NodeView) -> Iterator[Hit]:
    for gpu in view.node.present:
        if gpu.remapped_rows and gpu.remapped_rows.failure:
            yield Hit("row remapper reports a failure", gpu.label)


@rule(
    "memory.uncorrected-ecc",
    Severity.WARN,
    Area.GPU,
    "Uncorrected memory errors since the last reset",
    blocks="trust in results computed since then",
    remedy="drain and reset the GPU; replace it if the errors come back",
    sources=(GPU_MEMORY,),
)
def uncorrected_ecc(view: NodeView) -> Iterator[Hit]:
    for gpu in view.node.present:
        rows = gpu.remapped_rows
        explained = rows and (rows.pending or rows.failure)  # reported as the remap itself
        count = known(gpu.ecc.volatile_uncorrected, 0)
        if count and not explained:
            yield Hit(f"{count} uncorrected ECC errors (volatile)", gpu.label)


def _recovery(view: NodeView, wanted: str) -> Iterator[tuple[Gpu, int, str]]:
    for gpu in view.node.present:
        action = known(gpu.recovery_action, 0)
        id_, name = RECOVERY_ACTIONS.get(action, ("gpu.recovery-action", f"unknown action {action}"))
        if action and id_ == wanted:
            yield gpu, action, name


def _declare_recovery(id_: str, what: str) -> None:
    @rule(
        id_,
        Severity.FAIL,
        Area.GPU,
        f"The driver asks for: {what}",
        blocks="any group that includes this GPU",
        remedy=f"drain the work on it, then do what the driver asks for: {what}",
        sources=(RECOVERY_FLAGS, RECOVERY),
    )
    def check(view: NodeView) -> Iterator[Hit]:
        for gpu, action, name in _recovery(view, id_):
            yield Hit(f"GPU recovery action {action}: {name}", gpu.label)


for _id, _what in RECOVERY_ACTIONS.values():
    _declare_recovery(_id, _what)
_declare_recovery("gpu.recovery-action", "an action that this k3ctl does not know")


@rule(
    "pcie.narrow",
    Severity.WARN,
    Area.GPU,
    "The PCIe link has lost lanes",
    blocks="the speed of loading weights and of offloading",
    remedy="reseat the GPU or its riser; compare with the other slots",
    sources=(NVML_DEVICE,),
)
def pcie_narrow(view: NodeView) -> Iterator[Hit]:
    for gpu in view.node.present:
        width, full = known(gpu.pci.width, 0), known(gpu.pci.width_max, 0)
        if 0 < width < full:
            yield Hit(f"×{width} of ×{full}", gpu.label)


@rule(
    "clock.hw-thermal-slowdown",
    Severity.FAIL,
    Area.GPU,
    "Hardware slows the GPU down: temperature",
    blocks="every performance figure; a tensor-parallel group runs at its slowest GPU",
    remedy="check airflow or coolant and the inlet temperature of this slot",
    sources=(NVML_DEVICE,),
)
def hw_thermal(view: NodeView) -> Iterator[Hit]:
    for gpu in view.node.present:
        reasons = known(gpu.clock_event_reasons, 0)
        if reasons & HW_THERMAL:
            yield Hit(f"clock event reasons {reasons:#x}, {known(gpu.temperature_c.gpu, 0)} °C", gpu.label)


@rule(
    "clock.hw-slowdown",
    Severity.WARN,
    Area.GPU,
    "Hardware slows the GPU down: power brake or power supply",
    blocks="every performance figure",
    remedy="check the power supplies and the rack's power limits",
    sources=(NVML_DEVICE,),
)
def hw_slowdown(view: NodeView) -> Iterator[Hit]:
    for gpu in view.node.present:
        reasons = known(gpu.clock_event_reasons, 0)
        if reasons & (HW_SLOWDOWN | POWER_BRAKE) and not reasons & HW_THERMAL:
            yield Hit(f"clock event reasons {reasons:#x}", gpu.label)


@rule(
    "clock.sw-thermal-slowdown",
    Severity.WARN,
    Area.GPU,
    "The driver slows the GPU down: temperature",
    blocks="every performance figure",
    remedy="check airflow or coolant",
    sources=(NVML_DEVICE,),
)
def sw_thermal(view: NodeView) -> Iterator[Hit]:
    for gpu in view.node.present:
        reasons = known(gpu.clock_event_reasons, 0)
        if reasons & SW_THERMAL and not reasons & HW_THERMAL:
            yield Hit(f"clock event reasons {reasons:#x}, {known(gpu.temperature_c.gpu, 0)} °C", gpu.label)
