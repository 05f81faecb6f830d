"""Compile and run the cluster kernel of Attention Residuals."""

from functools import cache

import cutlass

from runtime.kernels.attn_res.cute_kernel import AttnResCluster
from runtime.kernels.common.cute_compile import compile_kernel, gpu_arch, symbol, tensor


def operands(hidden: int):
    """Stand-ins for the kernel's arguments, in order: any number of rows, row strides a multiple of 8."""
    rows = symbol()

    def row():
        return tensor((rows, hidden), (symbol(8), 1))

    def weight():
        return tensor((hidden,), (1,))

    blocks = tensor((rows, symbol(), hidden), (symbol(8), symbol(8), 1))
    eps = cutlass.Float32(1e-5)
    return (row(), row(), blocks, weight(), weight(), weight(), row(), eps, eps)


@cache
def compiled(hidden, num_blocks, write, has_delta, has_norm, settled, cluster, resident, arch):
    """The compiled kernel of one call site and launch shape."""
    kernel = AttnResCluster(hidden, num_blocks, write, has_delta, has_norm, settled, cluster, resident)
    return compile_kernel(kernel, *operands(hidden), arch=arch)


def run(
    prefix, delta, blocks, out, *, num_blocks, write, score_norm, score_vec, eps, out_norm, out_eps, settled, cluster, resident
):
    """Launch on PyTorch's current stream; `prefix`, and `blocks[:, write]` if asked, are updated in place."""
    kernel = compiled(
        prefix.shape[1],
        num_blocks,
        write,
        delta is not None,
        out_norm is not None,
        settled,
        cluster,
        resident,
        gpu_arch(prefix.device.index),
    )
    kernel(
        prefix,
        prefix if delta is None else delta,
        blocks,
        score_norm,
        score_vec,
        score_norm if out_norm is None else out_norm,
        out,
        eps,
        out_eps,
    )
