"""Compile and run the weight-streaming GEMM."""

from functools import cache

import torch

from runtime.kernels.common.cute_compile import compile_kernel, gpu_arch, symbol, tensor
from runtime.kernels.skinny_gemm.cute_kernel import SkinnyGemm


def operands(k: int, epilogue: str):
    """Stand-ins for x, w and out."""
    rows = symbol()
    dtype = torch.float32 if epilogue == "fp32" else torch.bfloat16
    out = tensor((rows, symbol()), (symbol(), 1), dtype, align=4 if epilogue == "fp32" else 2)
    return tensor((rows, k), (symbol(8), 1)), tensor((symbol(), k), (k, 1)), out


@cache
def compiled(k, tile, tokens, warps, depth, splits, resident, epilogue, arch):
    """The compiled kernel of one K, launch shape and epilogue; any N and any M up to `tokens`."""
    kernel = SkinnyGemm(k, tile, tokens, warps, depth, splits, resident, epilogue)
    return compile_kernel(kernel, *operands(k, epilogue), arch=arch)


def run(x, w, out, *, tile, tokens, warps, depth, splits, resident, epilogue="bf16"):
    """Launch on PyTorch's current stream."""
    arch = gpu_arch(x.device.index)
    compiled(x.shape[1], tile, tokens, warps, depth, splits, resident, epilogue, arch)(x, w, out)
