"""NoPE latent attention with expanded keys and values in PyTorch: what a prefill kernel computes."""

import torch
from torch import Tensor

from runtime.kernels.common.maths.precision import compute_dtype


def mla_expanded(
    q: Tensor, cache: Tensor, w_uk: Tensor, w_uv: Tensor, positions: Tensor, scale: float
) -> Tensor:
    """Causal attention of T query tokens of one sequence, over per-head keys and values made from its cache.

    q: [T, N, dn+dr]. cache: [S, L+dr], this step's rows included. w_uk: [N, dn, L]. w_uv: [N, dv, L].
    positions: [T] integer, absolute; the key in row j is visible if j ≤ position. Rows that no query sees may
    hold anything, NaN included; a query that sees no row gets zeros.

    Returns [T, N, dv] in `q.dtype`. FP32 inside (FP64 for FP64 operands); rounding points, all to `q.dtype`:
    the expanded keys and values, the value output. Equal to the absorbed form in exact arithmetic. The
    last bits of a query's result may change with T and S, as those of any plain FP32 matrix product.
    """
    dtype, latent = compute_dtype(q, cache, w_uk, w_uv), w_uk.shape[2]
    visible = torch.arange(cache.shape[0], device=cache.device) <= positions[:, None]  # [T, S]
    # Zeros, since a zero weight times a NaN row would still be NaN.
    seen = cache.masked_fill(~visible.any(0)[:, None], 0).to(dtype)
    key = torch.einsum("sl,ndl->nsd", seen[:, :latent], w_uk.to(dtype)).to(q.dtype)
    value = torch.einsum("sl,nvl->nsv", seen[:, :latent], w_uv.to(dtype)).to(q.dtype).to(dtype)
    shared = seen[:, latent:].expand(key.shape[0], -1, -1)
    scores = torch.einsum("tnd,nsd->nts", q.to(dtype), torch.cat([key.to(dtype), shared], dim=-1)) * scale
    weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
    weights = weights.masked_fill(~visible, 0)  # a query that sees nothing has NaN weights
    return torch.einsum("nts,nsv->tnv", weights, value).to(q.dtype)
