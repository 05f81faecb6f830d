"""NVLinks, peer access between GPUs, and multicast."""

from __future__ import annotations

from collections.abc import Iterator

from k3ctl.checks.domains import islands, usable
from k3ctl.checks.finding import Area, Hit, Severity, Source, rule
from k3ctl.checks.multicast import FORBIDDING, NO
from k3ctl.checks.products import GPU_KINDS, SWITCHED
from k3ctl.checks.view import NodeView
from k3ctl.facts.products import Kind
from k3ctl.host.values import known, unread

LINKS_ARE_NO_PROOF = Source("https://github.com/Dstack-TEE/dstack/pull/1167", "2026-09-02")
DCGM = Source(
    "https://github.com/NVIDIA/DCGM/issues/198", "2024-11-13", "`dcgmi diag` passes with every link down"
)
BRIDGES = Source("https://github.com/vllm-project/vllm/issues/48071", "2026-07-09")
TOPOLOGY = Source("https://github.com/sgl-project/sglang/issues/11208", "2025-10")
NVLS_ENV = Source("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html", "2026-11")
FORCED_OFF = Source("https://github.com/lightseekorg/tokenspeed/pull/1127", "2026-08-18")
NEEDS_MULTICAST = Source("https://github.com/vllm-project/vllm/issues/50179", "2026-07-28")
JOINED_BOARDS = SWITCHED | {Kind.UNKNOWN}
SPECIALIZED = "the specialized decode path (TP8, TP16)"


@rule(
    "nvlink.none",
    Severity.INFO,
    Area.NVLINK,
    "No NVLink",
    blocks="tensor parallelism for K3",
    remedy="nothing to repair: this product has no NVLink",
    sources=(TOPOLOGY,),
    kinds=frozenset({Kind.PCIE, Kind.UNIFIED}),
)
def none(view: NodeView) -> Iterator[Hit]:
    gpus = view.node.present
    read = any(isinstance(gpu.architecture, int) for gpu in gpus) or bool(view.node.pairs)
    if read and not any(gpu.links for gpu in gpus):
        yield Hit(
            f"{len(view.node.present)} GPU(s) without NVLinks ({view.product.id})",
            remedy="fit NVLink bridges, where cards of this product take them" if view.product.chip else None,
        )


@rule(
    "nvlink.odd-gpu",
    Severity.FAIL,
    Area.NVLINK,
    "One GPU has no NVLink, the others of its board have",
    blocks="any group that includes this GPU",
    remedy="leave this GPU out; reset it, then have its baseboard connection checked",
    sources=(LINKS_ARE_NO_PROOF, TOPOLOGY),
    kinds=JOINED_BOARDS,
)
def odd_gpu(view: NodeView) -> Iterator[Hit]:
    """By the links where they were read, else by the matrix: joined to none, while the others are to each other."""
    gpus = [gpu for gpu in view.node.present if not gpu.in_mig_mode]
    linked = [gpu for gpu in gpus if gpu.links]
    bare = [gpu for gpu in gpus if not unread(gpu.links) and not gpu.links]
    if not linked and (alone := _alone(view)):
        bare = [gpu for gpu in gpus if {gpu.index} in alone]
        linked = [gpu for gpu in gpus if gpu not in bare]
    if linked:
        for gpu in bare:
            yield Hit(f"GPU {gpu.index} has no NVLink, {len(linked)} others have", gpu.label)


def _alone(view: NodeView) -> list[set[int]]:
    """GPUs that the matrix joins to none, on a board whose other GPUs, the most of it, are all joined to each other."""
    groups = _joined(view)
    alone = [group for group in groups if len(group) == 1]
    rest = len(view.node.present) - len(alone)
    return alone if len(groups) == len(alone) + 1 and rest > len(alone) else []


def _joined(view: NodeView) -> list[set[int]]:
    """The GPUs by who reaches whom over NVLink in the matrix; empty when a pair of it was not read."""
    groups = [{gpu.index} for gpu in view.node.present]
    if any(unread(pair.p2p.nvlink) for pair in view.node.pairs) or not view.node.pairs:
        return []
    for pair in view.node.pairs:
        if pair.p2p.nvlink == 0:
            touching = [group for group in groups if group & {pair.a, pair.b}]
            groups = [group for group in groups if group not in touching] + [set().union(*touching)]
    return groups


@rule(
    "nvlink.no-switch",
    Severity.WARN,
    Area.NVLINK,
    "NVLink bridges, no NVSwitch",
    blocks=f"multicast, and with it {SPECIALIZED}",
    remedy="use tensor parallelism inside one bridge only; choose an all-reduce backend without multicast",
    sources=(BRIDGES,),
    kinds=frozenset({Kind.BRIDGE}),
)
def no_switch(view: NodeView) -> Iterator[Hit]:
    count = sum(known(link.remote_type, -1) == 0 for gpu in view.node.present for link in gpu.links)
    if count:
        yield Hit(f"{count} NVLinks end at another GPU, none at a switch")


@rule(
    "nvlink.islands",
    Severity.WARN,
    Area.NVLINK,
    "The GPUs form several NVLink islands",
    blocks="tensor parallelism over all GPUs of this host, and multicast",
    remedy="keep each tensor-parallel group inside one island",
    sources=(BRIDGES, TOPOLOGY),
    kinds=frozenset({Kind.BRIDGE, Kind.HGX8}),
)
def several_islands(view: NodeView) -> Iterator[Hit]:
    groups = islands(view.node, view.product)
    if len(groups) > 1:
        text = ", ".join("{" + ",".join(str(index) for _, index in group) + "}" for group in groups)
        yield Hit(f"NVLink joins only GPUs {text}")


@rule(
    "nvlink.links-down",
    Severity.WARN,
    Area.NVLINK,
    "NVLinks are down",
    blocks="full NVLink bandwidth; a tensor-parallel group runs at its slowest GPU",
    remedy="check cable, bridge or switch port of the links that are down; reset the GPU when they are back",
    sources=(LINKS_ARE_NO_PROOF, DCGM),
)
def links_down(view: NodeView) -> Iterator[Hit]:
    for gpu in view.node.present:
        down = [link.link for link in gpu.links if known(link.state, 1) == 0]
        if down:
            all_down = len(down) == len(gpu.links)
            yield Hit(
                f"{gpu.links_up} of {len(gpu.links)} links up, down: {_ranges(down)}",
                gpu.label,
                severity=Severity.FAIL if all_down else None,
                blocks="NVLink at all" if all_down else None,
            )


@rule(
    "nvlink.no-peer-access",
    Severity.FAIL,
    Area.NVLINK,
    "Links are up, peer access over them is dead",
    blocks="every tensor-parallel profile: collectives fall back to PCIe, 10 to 100 times slower, silently",
    remedy="check the fabric manager and the fabric state; `k3ctl doctor --probe` copies between the GPUs",
    sources=(LINKS_ARE_NO_PROOF,),
    kinds=frozenset({Kind.NVL72, Kind.HGX8, Kind.UNKNOWN}),
)
def no_peer_access(view: NodeView) -> Iterator[Hit]:
    mig = {gpu.index for gpu in view.node.present if gpu.in_mig_mode}
    mig |= {index for group in _alone(view) for index in group}  # reported as the GPU without NVLink
    dead = [
        (pair.a, pair.b)
        for pair in view.node.pairs
        if known(pair.p2p.nvlink, 0) > 0 and not mig & {pair.a, pair.b}
    ]
    if dead:
        shown = ", ".join(f"{a}-{b}" for a, b in dead[:6]) + (" …" if len(dead) > 6 else "")
        yield Hit(f"{len(dead)} of {len(view.node.pairs)} pairs without NVLink peer access: {shown}")


@rule(
    "multicast.env-disabled",
    Severity.WARN,
    Area.MULTICAST,
    "The environment turns NVLink multicast off",
    blocks=SPECIALIZED,
    remedy="unset the variable where it is set, unless it works around a fault of this host",
    sources=(NVLS_ENV, FORCED_OFF, NEEDS_MULTICAST),
    kinds=SWITCHED | {Kind.UNKNOWN},
)
def env_disabled(view: NodeView) -> Iterator[Hit]:
    for name, value in FORBIDDING.items():
        if view.setting(name) == value:
            origin = view.settings[name].origin
            yield Hit(
                f"{name}={value}" + (f", set by {origin}" if origin else ""),
                severity=Severity.FAIL if view.product.specialized else None,
            )


@rule(
    "multicast.not-supported",
    Severity.WARN,
    Area.MULTICAST,
    "The driver reports no multicast",
    blocks=SPECIALIZED,
    remedy="check the fabric state and confidential computing; both can take multicast away",
    sources=(NEEDS_MULTICAST,),
    kinds=SWITCHED,
)
def not_supported(view: NodeView) -> Iterator[Hit]:
    members = {gpu.index for gpu in usable(view.node, view.product)}
    off = [device.index for device in view.node.cuda if device.index in members and not device.multicast]
    if off and view.multicast.capability == NO:
        yield Hit(
            f"CUDA attribute MULTICAST_SUPPORTED is 0 on GPU {_ranges(off)}",
            severity=Severity.FAIL if view.product.specialized else None,
        )


@rule(
    "gpu.confidential-compute",
    Severity.WARN,
    Area.MULTICAST,
    "Confidential computing is on",
    blocks=f"multicast, and with it {SPECIALIZED}",
    remedy="serve on a host without confidential computing, or use the standard path",
    sources=(NEEDS_MULTICAST, Source("https://github.com/sgl-project/sglang/pull/30364", "2026-07")),
    kinds=GPU_KINDS,
)
def confidential(view: NodeView) -> Iterator[Hit]:
    state = view.node.nvml.confidential_compute
    if state and state.feature:
        yield Hit(f"ccFeature {state.feature}, environment {state.environment}")


def _ranges(numbers: list[int]) -> str:
    """``0,1,2,5`` → ``0-2,5``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
