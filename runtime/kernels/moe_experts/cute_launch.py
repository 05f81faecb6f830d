"""Compile and run the routed experts' kernels."""

from dataclasses import replace
from functools import cache

import torch
from cutlass import Int32

from runtime.kernels.common.launch.cute_compile import compile_image, compile_kernel, symbol, tensor
from runtime.kernels.common.launch.device import H200, arch_of, multiprocessors
from runtime.kernels.common.workshop.audit import Limits, Role
from runtime.kernels.common.workshop.builds import TARGETS, Build
from runtime.kernels.moe_experts.cute_down import ExpertsDown
from runtime.kernels.moe_experts.cute_gate_up import ExpertsGateUp
from runtime.kernels.moe_experts.shapes import Down, GateUp
from runtime.kernels.moe_experts.table import OTHER, TABLES

LATENT, SLOTS = 3584, 16  # of the builds
PLACE = 128  # see `cute_mxfp4.factors`


def _weight(rows, columns):
    """Stand-ins for a weight [rows, columns] of every expert and its scales, in Humming's layout."""
    experts, i32 = symbol(), torch.int32
    words, scales = (columns // 16, 2 * rows), (columns // 32, rows // 4)
    return (
        tensor((experts, *words), (words[0] * words[1], words[1], 1), i32),
        tensor((experts, *scales), (scales[0] * scales[1], scales[1], 1), i32),
    )


def _groups():
    """Stand-ins for experts, rows and count of the groups."""
    groups, i32 = symbol(), torch.int32
    return (
        tensor((groups,), (1,), i32, align=4),
        tensor((groups, 8), (8, 1), i32),
        tensor((1,), (1,), i32, align=4),
    )


def gate_up_operands(latent: int, width: int):
    """Stand-ins for the arguments of `ExpertsGateUp`, in order."""
    x, hidden = tensor((symbol(), latent), (symbol(8), 1)), tensor((symbol(), width), (width, 1))
    following = _weight(latent, width)
    return (x, *_weight(2 * width, latent), *_groups(), hidden, *following, Int32(1), Int32(PLACE))


def down_operands(latent: int, width: int, slots: int):
    """Stand-ins for the arguments of `ExpertsDown`, in order."""
    tokens, pairs = symbol(), symbol()
    return (
        tensor((pairs, width), (width, 1)),
        *_weight(latent, width),
        *_groups(),
        tensor((tokens, slots), (slots, 1), torch.int32),
        tensor((tokens, slots), (slots, 1), torch.float32),
        tensor((pairs, latent), (latent, 1)),
        tensor((latent // 64,), (1,), torch.int32, align=4),
        tensor((tokens, latent), (symbol(8), 1)),
        Int32(0),
        Int32(1),
        Int32(PLACE),
    )


def gate_up_kernel(latent, width, slots, shape: GateUp, settled=False, early_trigger=False, *betas):
    """The first kernel with a launch shape."""
    numbers = (shape.warps, shape.cluster, shape.resident, shape.depth, shape.prefetch)
    return ExpertsGateUp(latent, width, slots, *numbers, settled, early_trigger, *betas)


def down_kernel(latent, width, slots, shape: Down, early_trigger=False):
    """The second kernel with a launch shape."""
    numbers = (shape.warps, shape.shares, shape.resident, shape.depth, shape.prefetch)
    return ExpertsDown(latent, width, slots, *numbers, early_trigger)


@cache
def compiled_gate_up(spec, shape: GateUp, arch):
    """The compiled first kernel of one call site and launch shape.

    Its successor is the second kernel, which reads the groups early: it starts only after this one has waited.
    """
    site = (spec.latent, spec.width, spec.top_k)
    kernel = gate_up_kernel(*site, shape, spec.overlap.settled, False, spec.beta, spec.linear_beta)
    return compile_kernel(kernel, *gate_up_operands(spec.latent, spec.width), arch=arch)


@cache
def compiled_down(spec, shape: Down, arch):
    """The compiled second kernel of one call site and launch shape."""
    site = (spec.latent, spec.width, spec.top_k)
    kernel = down_kernel(*site, shape, spec.overlap.early_trigger)
    return compile_kernel(kernel, *down_operands(*site), arch=arch)


def run_gate_up(spec, x, weights, routing, hidden, following, shape: GateUp) -> None:
    """Launch on PyTorch's current stream; weights, following: (weight, scales as int32 words) of both kernels."""
    units = x.shape[0] * spec.top_k * (spec.width // 64)  # at most
    lanes = max(1, min(shape.resident * multiprocessors(x.device.index) // shape.cluster, units))
    kernel = compiled_gate_up(spec, shape, arch_of(x.device))
    kernel(x, *weights, routing.experts, routing.rows, routing.count, hidden, *following, lanes, PLACE)


def run_down(spec, hidden, weights, routing, partial, counters, out, shape: Down) -> None:
    """Launch on PyTorch's current stream, right after `run_gate_up`."""
    kernel = compiled_down(spec, shape, arch_of(out.device))
    groups = (routing.experts, routing.rows, routing.count)
    sums = (routing.ids, routing.weights, partial, counters, out)
    kernel(hidden, *weights, *groups, *sums, routing.first, routing.local, PLACE)


GATE_UP_ROLES: tuple[Role, ...] = (
    "activation",  # x
    "weight",
    "weight",  # scales
    "state",  # experts of the groups
    "state",  # rows
    "state",  # count
    "output",  # hidden
    "weight",  # of the next kernel
    "weight",  # its scales
    "scalar",  # lanes
    "scalar",  # place
)
DOWN_ROLES: tuple[Role, ...] = (
    "activation",  # hidden
    "weight",
    "weight",  # scales
    "state",  # experts of the groups
    "state",  # rows
    "state",  # count
    "activation",  # ids
    "activation",  # weights
    "mailbox",  # partial: written and read by all CTAs of a block
    "mailbox",  # counters
    "output",
    "scalar",  # first
    "scalar",  # local
    "scalar",  # place
)


def builds() -> list[Build]:
    """The launch shapes that CI compiles and audits: for Hopper all of the table, elsewhere a selection.

    The kernels were made for Hopper, where nothing spills. Elsewhere, where they have never run, the first one's 128
    registers are a few too few.
    """
    found, table = [], TABLES[H200]
    for width, launches in table.items():
        for shape in dict.fromkeys(launch.gate_up for launch in launches):
            for settled in (False, True):
                found.append(
                    _gate_up_build(gate_up_kernel(LATENT, width, SLOTS, shape, settled), TARGETS[:1])
                )
        for second in dict.fromkeys(launch.down for launch in launches):
            targets = TARGETS if second is table[384][0].down else TARGETS[:1]
            found.append(_down_build(down_kernel(LATENT, width, SLOTS, second), targets))
    few = gate_up_kernel(LATENT, 384, SLOTS, replace(table[384][0].gate_up, prefetch=True), True)
    found += [_gate_up_build(few, TARGETS[:1], " ahead"), _gate_up_build(few, TARGETS[1:], " elsewhere", 16)]
    ahead = replace(table[384][-1].down, prefetch=True)
    found.append(_down_build(down_kernel(LATENT, 384, SLOTS, ahead), TARGETS[:1]))
    full = 3072  # of an expert-parallel rank
    found.append(_gate_up_build(gate_up_kernel(LATENT, full, SLOTS, OTHER[0].gate_up), TARGETS[:1]))
    found.append(_down_build(down_kernel(LATENT, full, SLOTS, OTHER[0].down), TARGETS[:1]))
    return found


def _limits(kernel, stack_bytes=0) -> Limits:
    most = min(255, 65536 // (kernel.threads * kernel.resident))
    return Limits(most, stack_bytes, must_contain=("HMMA", "HMUL2.BF16", "LDG.E.NA.128"))


def _gate_up_build(kernel: ExpertsGateUp, targets, note="", stack_bytes=0) -> Build:
    shape = (kernel.warps, kernel.cluster, kernel.resident, kernel.depth, kernel.prefetch)
    return Build(
        f"moe_experts gate and up {kernel.blocks * 64} {shape} settled={kernel.settled}{note}",
        type(kernel).__name__,
        lambda target: compile_image(
            kernel, *gate_up_operands(kernel.columns, kernel.blocks * 64), arch=target
        ),
        GATE_UP_ROLES,
        settled=kernel.settled,
        early_trigger=kernel.early_trigger,
        targets=targets,
        dynamic_shared_bytes=kernel.smem_bytes,
        limits=_limits(kernel, stack_bytes),
    )


def _down_build(kernel: ExpertsDown, targets) -> Build:
    shape = (kernel.warps, kernel.shares, kernel.resident, kernel.depth, kernel.prefetch)
    operands = (kernel.latent, kernel.columns, kernel.slots)
    return Build(
        f"moe_experts down {kernel.columns} {shape}",
        type(kernel).__name__,
        lambda target: compile_image(kernel, *down_operands(*operands), arch=target),
        DOWN_ROLES,
        settled=True,
        early_trigger=kernel.early_trigger,
        targets=targets,
        dynamic_shared_bytes=kernel.smem_bytes,
        limits=_limits(kernel),
    )
