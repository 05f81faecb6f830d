"""SiTU, the gated activation of every K3 MLP: dense, shared and routed."""

import torch
from torch import Tensor

from runtime.kernels.common.maths.precision import compute_dtype


def situ(gate: Tensor, up: Tensor, beta: float = 4.0, linear_beta: float = 25.0) -> Tensor:
    """Return `beta·tanh(gate/beta)·sigmoid(gate) · linear_beta·tanh(up/linear_beta)` in `gate.dtype`.

    gate, up: same shape. Both factors are bounded, so |result| ≤ beta·linear_beta (100 for K3).
    FP32 inside (FP64 for FP64 operands), one rounding at the end.
    """
    dtype = compute_dtype(gate, up)
    g, u = gate.to(dtype), up.to(dtype)
    gated = beta * torch.tanh(g / beta) * torch.sigmoid(g)
    return (gated * (linear_beta * torch.tanh(u / linear_beta))).to(gate.dtype)
