"""RMSNorm and L2 normalisation over the last axis."""

import torch
from torch import Tensor

from runtime.kernels.common.maths.precision import compute_dtype


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return `x / sqrt(mean(x²) + eps) * weight`, rounded once to `x.dtype`.

    x: [..., D], any floating dtype. weight: [D]. The mean, the scaling and the weight are applied in FP32
    (FP64 for an FP64 operand).
    """
    dtype = compute_dtype(x, weight)
    wide = x.to(dtype)
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.to(dtype)
    return normed.to(x.dtype)


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Return `x / sqrt(sum(x²) + eps)` over the last axis, rounded once to `x.dtype`.

    x: [..., K]. `eps` is inside the root, so a zero vector stays zero.
    """
    wide = x.to(compute_dtype(x))
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)
