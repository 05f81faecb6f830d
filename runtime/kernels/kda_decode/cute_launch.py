"""Compile and run the fused KDA decode and verify kernel."""

from functools import cache

import cutlass
import torch

from runtime.kernels.common.cute_compile import compile_kernel, gpu_arch, symbol, tensor
from runtime.kernels.kda_decode.cute_kernel import HEAD, TAPS, KdaDecode
from runtime.kernels.kda_decode.cute_stream import KdaDecodeStream


def operands(heads: int):
    """Stand-ins for the kernel's arguments, in order; see `spec` for the meaning."""
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
    caches = (
        tensor((pages, symbol(), 3 * width), (symbol(), symbol(), symbol()), align=2),
        tensor((pages, heads, HEAD, HEAD), (symbol(4), symbol(4), HEAD, 1), torch.float32),
    )
    slots = tensor((requests, symbol()), (symbol(), 1), torch.int32, align=4)
    accepted = tensor((requests,), (1,), torch.int32, align=4)
    out = tensor((rows, width), (symbol(8), 1))
    return (projected, *weights, *caches, slots, accepted, out, cutlass.Float32(-5.0), cutlass.Float32(1e-5))


@cache
def compiled(heads, tokens, settled, shape, arch):
    """The compiled kernel of one head count, query length and launch shape (see `run`)."""
    if shape[0] == "stream":
        kernel = KdaDecodeStream(heads, settled, shape[1])
    else:
        kernel = KdaDecode(heads, tokens, settled, *shape)
    return compile_kernel(kernel, *operands(heads), arch=arch)


def run(projected, weights, conv_state, state, slots, accepted, out, *, lower_bound, eps, settled, shape):
    """Launch on PyTorch's current stream; `conv_state` and `state` are updated in place.

    shape: (cluster, resident, alone) of `KdaDecode`, or ("stream", lanes) of `KdaDecodeStream`.
    """
    heads, tokens = state.shape[1], projected.shape[0] // slots.shape[0]
    kernel = compiled(heads, tokens, settled, shape, gpu_arch(projected.device.index))
    kernel(projected, *weights, conv_state, state, slots, accepted, out, lower_bound, eps)
