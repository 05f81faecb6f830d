"""The routed experts in PyTorch: the definition of the operator, on weights in the checkpoint's format."""

import torch
from torch import Tensor

from runtime.kernels.common.maths.activations import situ
from runtime.kernels.common.maths.mxfp4 import decode_mxfp4
from runtime.kernels.common.maths.precision import compute_dtype


def moe_experts(
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
    w13: tuple[Tensor, Tensor],
    w2: tuple[Tensor, Tensor],
    *,
    first: int = 0,
    beta: float = 4.0,
    linear_beta: float = 25.0,
) -> Tensor:
    """Return `sum_s weight_s · W2_e situ(W1_e x, W3_e x)`, e = ids_s, over the slots whose expert is here.

    x: [T, K]. weights, ids: [T, k]; e counts from `first`, and experts outside first … first + E - 1 add nothing. w13:
    (codes [E, 2 I, K/2], scales [E, 2 I, K/32]), gate rows then up rows; w2: ([E, K, I/2], [E, K, I/32]).

    Returns [T, K] in `x.dtype`. Rounding points, all to `x.dtype`: gate and up products, activation, each expert's
    row, and the sum, which is accumulated in FP32 (FP64 for FP64 operands) in the order of the slots.
    """
    dtype = compute_dtype(x, weights)
    tokens, top_k = ids.shape
    rows = torch.zeros(tokens, top_k, x.shape[1], dtype=dtype, device=x.device)
    local = ids.long() - first
    held = (local >= 0) & (local < w13[0].shape[0])
    for expert in local[held].unique().tolist():
        up_down = decode_mxfp4(w13[0][expert], w13[1][expert]), decode_mxfp4(w2[0][expert], w2[1][expert])
        token, slot = torch.where(held & (local == expert))
        gate_up = (x[token].to(dtype) @ up_down[0].to(dtype).T).to(x.dtype)
        gate, up = gate_up.chunk(2, dim=-1)
        hidden = situ(gate, up, beta, linear_beta)
        rows[token, slot] = (hidden.to(dtype) @ up_down[1].to(dtype).T).to(x.dtype).to(dtype)
    total = torch.zeros(tokens, x.shape[1], dtype=dtype, device=x.device)
    for slot in range(top_k):
        share = torch.where(held[:, slot], weights[:, slot], 0).to(dtype)
        total = total + share[:, None] * rows[:, slot]
    return total.to(x.dtype)
