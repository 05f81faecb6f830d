"""What a verdict rests on and nobody read: an all-clear needs evidence, and silence is none.

Each rule names the reading that is missing and how to get it. Its severity is ``UNKNOWN``: a profile that depends on
it neither runs nor fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations

from k3ctl.checks.domains import COMPLETED
from k3ctl.checks.finding import Area, Hit, Severity, Source, rule
from k3ctl.checks.products import GPU_KINDS, SWITCHED
from k3ctl.checks.verdict import UNKNOWN, imex
from k3ctl.checks.view import NodeView
from k3ctl.facts.products import Kind
from k3ctl.gpus.types import Fabric, Gpu
from k3ctl.host.values import unread

SOURCE = Source(
    "https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html",
    "2026-11",
    "what a driver can answer",
)
LIVE = "run `k3ctl doctor` on the host"
VERDICT = "a verdict on every profile that needs it"
JOINED = SWITCHED | {Kind.BRIDGE, Kind.UNKNOWN}
HEALTH_MASK_SINCE = 2
"""Version of ``nvmlGpuFabricInfo`` from which on it holds the health mask; the summary came with the next one."""


def _declare(
    what: str,
    area: Area,
    title: str,
    capture: str,
    missing: Callable[[NodeView], Iterator[Hit]],
    kinds: frozenset[Kind] = GPU_KINDS,
) -> None:
    remedy = f"{LIVE}, or capture {capture}" if capture else f"{LIVE}: only CUDA there tells"
    rule(
        f"unread.{what}",
        Severity.UNKNOWN,
        area,
        title,
        blocks=VERDICT,
        remedy=remedy,
        sources=(SOURCE,),
        kinds=kinds,
    )(missing)


def _gpus(view: NodeView, lacking: Callable[[Gpu], Iterable[str]]) -> Iterator[Hit]:
    """One hit for all GPUs that lack the same readings."""
    lacks: dict[tuple[str, ...], list[Gpu]] = {}
    for gpu in view.node.present:
        if not gpu.in_mig_mode and (names := tuple(lacking(gpu))):
            lacks.setdefault(names, []).append(gpu)
    for names, gpus in lacks.items():
        yield Hit(f"not read: {', '.join(names)}", _places(gpus, view.node.present))


def _places(gpus: Sequence[Gpu], present: Sequence[Gpu]) -> str:
    if len(gpus) == len(present):
        return f"all {len(gpus)} GPUs" if len(gpus) > 1 else gpus[0].label
    return gpus[0].label if len(gpus) == 1 else f"GPU {', '.join(str(gpu.index) for gpu in gpus)}"


def _of(**readings: Callable[[Gpu], object]) -> Callable[[NodeView], Iterator[Hit]]:
    def missing(view: NodeView) -> Iterator[Hit]:
        return _gpus(
            view, lambda gpu: [name.replace("_", " ") for name, read in readings.items() if unread(read(gpu))]
        )

    return missing


def _not_captured(view: NodeView) -> Iterator[Hit]:
    """A report about a host whose GPUs nobody asked for."""
    if not view.node.gpus and view.node.nvml.error is None and not view.node.nvml.driver:
        yield Hit("no GPU was asked for")


def _fabric_health(view: NodeView) -> Iterator[Hit]:
    def lacking(gpu: Gpu) -> Iterator[str]:
        fabric = gpu.fabric
        if not isinstance(fabric, Fabric) or fabric.state != COMPLETED:
            return
        if fabric.version != 1 and unread(fabric.health_mask):
            yield "health mask"
        if fabric.version > HEALTH_MASK_SINCE and fabric.health_summary is None:
            yield "health summary"

    yield from _gpus(view, lacking)


def _links(view: NodeView) -> Iterator[Hit]:
    yield from _gpus(
        view, lambda gpu: ["NVLinks"] * (unread(gpu.links) or any(unread(link.state) for link in gpu.links))
    )


def _peers(view: NodeView) -> Iterator[Hit]:
    told = {frozenset((p.a, p.b)) for p in view.node.pairs if not unread(p.p2p.nvlink)}
    whole = [gpu.index for gpu in view.node.present if not gpu.in_mig_mode]
    pairs = [frozenset(pair) for pair in combinations(whole, 2)]
    missing = [pair for pair in pairs if pair not in told]
    if missing:
        yield Hit(f"not read: peer access over NVLink of {len(missing)} of {len(pairs)} pairs of GPUs")


def _multicast(view: NodeView) -> Iterator[Hit]:
    if view.product.kind is Kind.UNKNOWN and view.node.present:
        yield Hit("multicast unknown: it depends on the product")
        return
    told = {device.index for device in view.node.cuda}
    missing = [gpu for gpu in view.node.present if gpu.index not in told and not gpu.in_mig_mode]
    if missing:
        where = _places(missing, view.node.present)
        yield Hit("multicast unknown: CUDA's attribute was not read", where)


def _manager(view: NodeView) -> Iterator[Hit]:
    service = view.node.services.get("nvidia-fabricmanager")
    if service is None:
        yield Hit("not read: nvidia-fabricmanager")
    elif service.active == "active" and service.version is None:
        yield Hit("not read: version of nvidia-fabricmanager")


def _driver(view: NodeView) -> Iterator[Hit]:
    system = view.node.nvml
    if not view.node.present:
        return
    lacking = ["driver version"] * (system.driver is None) + ["its CUDA version"] * (
        system.cuda_driver is None
    )
    if lacking:
        yield Hit(f"not read: {', '.join(lacking)}")


def _imex(view: NodeView) -> Iterator[Hit]:
    if imex(view.node, view.product, view.imex_domain) == UNKNOWN:
        yield Hit("not read: IMEX channels, or the state of IMEX")


def _environment(view: NodeView) -> Iterator[Hit]:
    if view.node.gpus and unread(view.node.env):
        yield Hit("not read: environment variables of NCCL and vLLM")


def _host(view: NodeView) -> Iterator[Hit]:
    host = view.host
    if host is None or not host.k3ctl:  # a bare snapshot and a text capture hold no such facts at all
        return
    facts = {
        "/dev/shm": host.shm_bytes,
        "locked-memory limit": host.memlock_bytes,
        "addresses of the host's name": host.addresses,
    }
    lacking = [name for name, value in facts.items() if value is None]
    if view.node.present and host.cuda_error is None and not host.cuda_problem:
        lacking.append("start of CUDA")
    if lacking:
        yield Hit(f"not read: {', '.join(lacking)}")


_declare(
    "gpus", Area.GPU, "The GPUs were not read", "`nvidia-smi -q`", _not_captured, frozenset({Kind.UNKNOWN})
)
_declare("product", Area.GPU, "The product is not known", "`nvidia-smi -L`", _of(name=lambda gpu: gpu.name))
_declare(
    "fabric",
    Area.NVLINK,
    "The NVLink fabric was not read: the domain is not known",
    "`nvidia-smi -q`",
    _of(fabric=lambda gpu: gpu.fabric),
    SWITCHED,
)
_declare(
    "fabric-health",
    Area.NVLINK,
    "The health of the fabric was not read",
    "`nvidia-smi -q`",
    _fabric_health,
    SWITCHED,
)
_declare("links", Area.NVLINK, "The NVLinks were not read", "`nvidia-smi nvlink -s`", _links, JOINED)
_declare(
    "peers", Area.NVLINK, "Peer access between GPUs was not read", "`nvidia-smi topo -p2p n`", _peers, JOINED
)
_declare(
    "multicast",
    Area.MULTICAST,
    "Whether NVLink multicast works is not known",
    "",
    _multicast,
    SWITCHED | {Kind.UNKNOWN},
)
_declare(
    "memory",
    Area.GPU,
    "GPU memory was not read",
    "`nvidia-smi -q`",
    _of(memory=lambda gpu: gpu.memory),
    GPU_KINDS - {Kind.UNIFIED},
)
_declare(
    "health",
    Area.GPU,
    "The health of the GPUs was not read",
    "`nvidia-smi -q`",
    _of(
        MIG_mode=lambda gpu: gpu.mig.mode,
        requested_recovery=lambda gpu: gpu.recovery_action,
        remapped_rows=lambda gpu: gpu.remapped_rows,
        clock_event_reasons=lambda gpu: gpu.clock_event_reasons,
    ),
)
_declare("driver", Area.DRIVER, "The driver's version is not known", "`nvidia-smi -q`", _driver)
_declare(
    "fabric-manager",
    Area.NVLINK,
    "The state of the fabric manager is not known",
    "`systemctl is-active nvidia-fabricmanager` and `nv-fabricmanager --version`",
    _manager,
    frozenset({Kind.HGX8}),
)
_declare(
    "imex",
    Area.MULTI_NODE,
    "The state of IMEX is not known",
    "`nvidia-imex-ctl -N`, `nvidia-imex-ctl -q` and `ls /dev/nvidia-caps-imex-channels`",
    _imex,
    frozenset({Kind.NVL72}),
)
_declare(
    "environment",
    Area.HOST,
    "The environment was not read",
    "`env` as NAME=value lines",
    _environment,
    SWITCHED,
)
_declare(
    "host", Area.HOST, "Some limits of the host were not read", "`ulimit -l` and `df -h /dev/shm`", _host
)
