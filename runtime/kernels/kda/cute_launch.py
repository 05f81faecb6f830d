"""Compile and run the fused KDA decode and verify kernel."""

from functools import cache

import cutlass
import torch

from runtime.kernels.common.launch.cute_compile import compile_image, compile_kernel, symbol, tensor
from runtime.kernels.common.launch.device import arch_of
from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.common.workshop.audit import Limits, Role
from runtime.kernels.common.workshop.builds import Build
from runtime.kernels.kda.cute_kernel import HEAD, TAPS, THREADS, KdaDecodeKernel
from runtime.kernels.kda.cute_stream import KdaStreamKernel
from runtime.kernels.kda.shapes import Split, Stream


def operands(heads: int, stream: bool = False):
    """Stand-ins for the kernel's arguments, in order; see `spec` for the meaning.

    The stream kernel copies windows with the copy engine, so they must be contiguous along the channels and aligned.
    """
    width = heads * HEAD
    rows, requests, pages = symbol(), symbol(), symbol()
    projected = tensor((rows, symbol()), (symbol(8), 1))
    weights = (
        tensor((width, HEAD), (HEAD, 1)),
        tensor((3 * width, TAPS), (TAPS, 1), torch.float32),
        tensor((heads,), (1,), torch.float32, align=4),
        tensor((heads, HEAD), (HEAD, 1), torch.float32),
        tensor((HEAD,), (1,), torch.float32),
    )
    strides, align = ((symbol(8), symbol(8), 1), 16) if stream else ((symbol(), symbol(), symbol()), 2)
    caches = (
        tensor((pages, symbol(), 3 * width), strides, align=align),
        tensor((pages, heads, HEAD, HEAD), (symbol(4), symbol(4), HEAD, 1), torch.float32),
    )
    slots = tensor((requests, symbol()), (symbol(), 1), torch.int32, align=4)
    accepted = tensor((requests,), (1,), torch.int32, align=4)
    out = tensor((rows, width), (symbol(8), 1))
    return (projected, *weights, *caches, slots, accepted, out, cutlass.Float32(-5.0), cutlass.Float32(1e-5))


@cache
def compiled(heads, tokens, overlap, shape, arch):
    """The compiled kernel of one head count, query length and launch shape (`Split` or `Stream`)."""
    return compile_kernel(
        _kernel(heads, tokens, overlap, shape), *operands(heads, isinstance(shape, Stream)), arch=arch
    )


def _kernel(heads, tokens, overlap, shape):
    if isinstance(shape, Stream):
        return KdaStreamKernel(heads, overlap, shape.lanes)
    return KdaDecodeKernel(heads, tokens, overlap, shape.cluster, shape.resident, shape.alone)


def run(projected, weights, conv_state, state, slots, accepted, out, *, lower_bound, eps, overlap, shape):
    """Launch on PyTorch's current stream with a `Split` or `Stream`; `conv_state` and `state` are updated in place."""
    heads, tokens = state.shape[1], projected.shape[0] // slots.shape[0]
    kernel = compiled(heads, tokens, overlap, shape, arch_of(projected.device))
    kernel(projected, *weights, conv_state, state, slots, accepted, out, lower_bound, eps)


ROLES: tuple[Role, ...] = (
    "activation",  # projected
    "weight",  # f_b
    "weight",  # conv_weight
    "weight",  # A_log
    "weight",  # dt_bias
    "weight",  # norm_weight
    "state",  # conv_state
    "state",
    "table",  # slots
    "table",  # accepted
    "output",
    "scalar",
    "scalar",
)


def builds() -> list[Build]:
    """The launch shapes that CI compiles and audits."""
    decode = [_kernel(12, 1, Overlap(settled, settled), split) for settled, split in _DECODE_SHAPES]
    verify = [_kernel(heads, tokens, Overlap(True, False), split) for heads, tokens, split in _VERIFY_SHAPES]
    streams = [_kernel(12, 1, Overlap(settled, settled), Stream(11)) for settled in (False, True)]
    return [_build(kernel) for kernel in (*decode, *verify)] + [
        _build(kernel, stream=True) for kernel in streams
    ]


_DECODE_SHAPES = [
    (False, Split(4, 2)),
    (True, Split(4, 2)),
    (False, Split(2, 2)),
    (True, Split(2, 2)),
    (False, Split(1, 2)),
]
_VERIFY_SHAPES = [(12, 8, Split(4, 1)), (12, 8, Split(2, 2)), (6, 3, Split(4, 1))]


def _build(kernel: KdaDecodeKernel, stream: bool = False) -> Build:
    kind = "stream" if stream else f"cluster={kernel.cluster}"
    return Build(
        f"kda_decode heads={kernel.heads} tokens={kernel.tokens} settled={kernel.settled} {kind}",
        type(kernel).__name__,
        lambda target: compile_image(kernel, *operands(kernel.heads, stream), arch=target),
        ROLES[:9] + ROLES[10:] if stream else ROLES,
        settled=kernel.settled,
        early_trigger=kernel.early_trigger,
        dynamic_shared_bytes=kernel.smem_bytes,
        limits=Limits(
            min(255, 65536 // (THREADS * kernel.resident)),
            must_contain=("HMMA", "UBLKCP" if stream else "STAS"),
        ),
    )
