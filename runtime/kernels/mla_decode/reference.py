"""NoPE multi-head latent attention in the absorbed form in PyTorch: the definition of the operator.

Sizes: N heads, query = dn latent-key dims + dr shared-key dims (un-rotated in K3), cache row = L latent + dr
shared-key numbers, one row per token for all heads, dv value dims per head.
"""

import torch
from torch import Tensor

from runtime.kernels.common.precision import compute_dtype


def mla_absorbed(
    q: Tensor, cache: Tensor, w_uk: Tensor, w_uv: Tensor, positions: Tensor, scale: float
) -> Tensor:
    """Causal attention of T query tokens of one sequence over its latent cache.

    q: [T, N, dn+dr]. cache: [S, L+dr], this step's rows included. w_uk: [N, dn, L]. w_uv: [N, dv, L].
    positions: [T] integer, absolute; the key in row j is visible if j ≤ position. Rows that no query sees may
    hold anything, NaN included; a query that sees no row gets zeros.

    Returns [T, N, dv] in `q.dtype`. FP32 inside (FP64 for FP64 operands); rounding points, all to `q.dtype`:
    the absorbed query, the latent output, the value output. Matrix products here have T·N rows and S columns,
    so the last bits may change with T and S.
    """
    dtype = compute_dtype(q, cache, w_uk, w_uv)
    out = _attend(q[None], cache[None], w_uk.to(dtype), w_uv.to(dtype), positions[None], scale)
    return out[0].to(q.dtype)


def mla_absorbed_batched(
    q: Tensor, cache: Tensor, w_uk: Tensor, w_uv: Tensor, lengths: Tensor, scale: float
) -> Tensor:
    """Causal attention of the last `q` tokens of each of B sequences (uniform decode or verify step).

    q: [B, q, N, dn+dr]. cache: [B, S, L+dr], rows at or beyond a sequence's length are padding and may hold
    anything, NaN included. w_uk: [N, dn, L]. w_uv: [N, dv, L]. lengths: [B] integer, tokens in the cache with
    this step's included, so query i sits at position `length - q + i`; a sequence of length 0 is padding and
    gets zeros.

    Returns [B, q, N, dv] in `q.dtype`; precision and rounding points as in `mla_absorbed`.
    """
    dtype = compute_dtype(q, cache, w_uk, w_uv)
    steps = torch.arange(q.shape[1], device=q.device)
    positions = lengths[:, None] - q.shape[1] + steps
    return _attend(q, cache, w_uk.to(dtype), w_uv.to(dtype), positions, scale).to(q.dtype)


def _attend(q: Tensor, cache: Tensor, w_uk: Tensor, w_uv: Tensor, positions: Tensor, scale: float) -> Tensor:
    """q [B, q, N, dn+dr], cache [B, S, L+dr], positions [B, q] → [B, q, N, dv] unrounded, in `w_uk.dtype`."""
    dtype, dn, latent = w_uk.dtype, w_uk.shape[1], w_uk.shape[2]
    rows = torch.arange(cache.shape[1], device=cache.device)
    visible = rows <= positions[..., None]  # [B, q, S]
    # Zeros, since a zero weight times a NaN row would still be NaN.
    seen = cache.masked_fill(~visible.any(1)[..., None], 0).to(dtype)
    absorbed = torch.einsum("bqnd,ndl->bqnl", q[..., :dn].to(dtype), w_uk).to(q.dtype)
    query = torch.cat([absorbed, q[..., dn:]], dim=-1).to(dtype)
    scores = torch.einsum("bqnd,bsd->bqns", query, seen) * scale
    weights = torch.softmax(scores.masked_fill(~visible[:, :, None], -torch.inf), dim=-1)
    weights = weights.masked_fill(~visible[:, :, None], 0)  # a query that sees nothing has NaN weights
    attended = torch.einsum("bqns,bsl->bqnl", weights, seen[..., :latent]).to(q.dtype)
    return torch.einsum("bqnl,nvl->bqnv", attended.to(dtype), w_uv)
