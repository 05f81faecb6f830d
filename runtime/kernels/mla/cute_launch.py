"""Compile and run the attention core."""

from functools import cache

import torch
from cutlass import Float32, Int32

from runtime.kernels.common.launch.cute_compile import compile_image, compile_kernel, symbol, tensor
from runtime.kernels.common.launch.device import arch_of
from runtime.kernels.common.workshop.audit import Limits, Role
from runtime.kernels.common.workshop.builds import TARGETS, Build
from runtime.kernels.mla.cute_core import MlaCoreKernel
from runtime.kernels.mla.shapes import LATENT, ROW

REGISTERS = 168  # what ten warps, given out in fours, may have
LOG2E = 1.4426950408889634


def operands(heads: int, rows: int):
    """Stand-ins for the kernel's arguments, in order."""
    tokens, requests, places, i32, f32 = symbol(), symbol(), symbol(), torch.int32, torch.float32
    return (
        tensor((tokens, heads, ROW), (heads * ROW, ROW, 1)),
        tensor((tokens, ROW), (symbol(8), 1)),
        tensor((LATENT,), (1,)),
        tensor((symbol(), symbol(), ROW), (symbol(8), symbol(8), 1)),
        tensor((requests, symbol()), (symbol(), 1), i32, align=4),
        tensor((requests,), (1,), i32, align=4),
        tensor((symbol(),), (1,), i32, align=4),
        tensor((places, rows, LATENT), (rows * LATENT, LATENT, 1), f32),
        tensor((places, rows), (rows, 1), f32),
        tensor((ROW,), (1,)),
        *(Int32(1), Int32(1), Int32(1), Int32(0)),
        *(Float32(1e-5), Float32(1.0)),
    )


@cache
def _compiled(heads, tokens, rows, stages, overlap, arch):
    kernel = MlaCoreKernel(heads, tokens, rows, stages, overlap.settled, overlap.early_trigger)
    return compile_kernel(kernel, *operands(heads, rows), arch=arch)


def compiled(spec, split, stages, arch):
    """The compiled core of one call site, split and number of stages (None: as many as fit)."""
    return _compiled(spec.heads, spec.tokens, split.rows, stages, spec.overlap, arch)


def run(
    spec, split, query, kv_a, norm, cache, block_table, lengths, slots, o, lse, zeros, *, stages=None
) -> None:
    """Launch on PyTorch's current stream; shapes in `composed.mla_core`, o and lse in places (`shapes`)."""
    kernel = compiled(spec, split, stages, arch_of(query.device))
    pages = (cache, block_table, lengths, slots.view(torch.int32))
    numbers = (split.ctas, split.span, spec.ranks, spec.rank, spec.eps, spec.scale * LOG2E)
    kernel(query, kv_a, norm, *pages, o, lse, zeros, *numbers)


ROLES: tuple[Role, ...] = (
    "activation",  # query
    "activation",  # kv_a
    "weight",  # norm
    "state",  # cache
    "table",  # block_table
    "table",  # lengths
    "table",  # slots
    "output",  # o
    "output",  # lse
    "weight",  # zeros
    "scalar",  # span
    "scalar",  # ranks
    "scalar",  # rank
    "scalar",  # eps
    "scalar",
)


def builds() -> list[Build]:
    """The head counts, query lengths and promises that CI compiles and audits."""
    return [
        build
        for heads, tokens, rows, settled in (
            (12, 1, 16, False),
            (12, 1, 16, True),
            (6, 1, 16, False),
            (6, 4, 32, False),
            (12, 8, 32, True),
            (96, 1, 32, False),
        )
        for build in _both(MlaCoreKernel(heads, tokens, rows, None, settled, settled))
    ]


def _both(kernel: MlaCoreKernel) -> tuple[Build, Build]:
    """For Hopper, where 16 query rows do not spill, and for Blackwell, where they do and the core has not run."""
    hopper = 0 if kernel.rows == 16 else 64
    return _build(kernel, TARGETS[:1], "", hopper), _build(kernel, TARGETS[1:], " elsewhere", 64)


def _build(kernel: MlaCoreKernel, targets: tuple[str, ...], note: str, stack_bytes: int) -> Build:
    return Build(
        f"mla core heads={kernel.heads} tokens={kernel.tokens} settled={kernel.settled}{note}",
        type(kernel).__name__,
        lambda target: compile_image(kernel, *operands(kernel.heads, kernel.rows), arch=target),
        ROLES,
        settled=kernel.settled,
        early_trigger=kernel.early_trigger,
        dynamic_shared_bytes=kernel.smem_bytes,
        targets=targets,
        limits=Limits(REGISTERS, stack_bytes, must_contain=("HMMA", "UBLKCP", "LDSM")),
    )
