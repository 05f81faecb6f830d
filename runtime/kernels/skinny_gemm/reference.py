"""The projections of a decode step in PyTorch: the definition of the operator."""

import torch
from torch import Tensor
from torch.nn import functional as F

from runtime.kernels.common.maths.activations import situ
from runtime.kernels.common.maths.precision import compute_dtype

EPILOGUES = ("bf16", "fp32", "situ")


def skinny_gemm(x: Tensor, weight: Tensor, epilogue: str = "bf16") -> Tensor:
    """Return `x @ weight.T` with one of three epilogues.

    x: [M, K]. weight: [N, K]. "bf16": [M, N] in `x.dtype`. "fp32": [M, N] in FP32 (FP64 for FP64 operands).
    "situ": the first N/2 rows of `weight` are gate, the others up; [M, N/2] SiTU of the two, in `x.dtype`.

    Accumulation in FP32 (FP64 for FP64 operands). Rounding points: the product to `x.dtype` (not for "fp32"), which
    for "situ" happens before the activation; and the activation to `x.dtype`.

    Raises ValueError for an unknown epilogue, or "situ" with an odd number of rows.
    """
    if epilogue not in EPILOGUES:
        raise ValueError(f"epilogue must be one of {', '.join(EPILOGUES)}, got {epilogue!r}")
    dtype = compute_dtype(x, weight)
    product = F.linear(x.to(dtype), weight.to(dtype))
    if epilogue == "fp32":
        return product
    if epilogue == "bf16":
        return product.to(x.dtype)
    if weight.shape[0] % 2:
        raise ValueError(f"weight must have an even number of rows for situ, got {weight.shape[0]}")
    gate, up = torch.chunk(product.to(x.dtype), 2, dim=-1)
    return situ(gate, up)
