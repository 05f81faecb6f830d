"""NoPE multi-head latent attention in the absorbed form in PyTorch: the definition of the operator.

Sizes: N heads, query = dn latent-key dims + dr shared-key dims (un-rotated in K3), cache row = L latent + dr
shared-key numbers, one row per token for all heads, dv value dims per head.
"""

import torch
from torch import Tensor

from runtime.kernels.common.maths.linear import pad_to_tile, row_stable_matmul
from runtime.kernels.common.maths.precision import compute_dtype


def mla_absorbed(
    q: Tensor, cache: Tensor, w_uk: Tensor, w_uv: Tensor, positions: Tensor, scale: float
) -> Tensor:
    """Causal attention of T query tokens of one sequence over its latent cache.

    q: [T, N, dn+dr]. cache: [S, L+dr], this step's rows included. w_uk: [N, dn, L]. w_uv: [N, dv, L].
    positions: [T] integer, absolute; the key in row j is visible if j ≤ position. Rows that no query sees may
    hold anything, NaN included; a query that sees no row gets zeros.

    Returns [T, N, dv] in `q.dtype`. FP32 inside (FP64 for FP64 operands); rounding points, all to `q.dtype`:
    the absorbed query, the latent output, the value output. A query's bits do not depend on T, on S, or on
    the other sequences of a batch (`row_stable_matmul`).
    """
    return _attend(q[None], cache[None], w_uk, w_uv, positions[None], scale)[0]


def mla_absorbed_batched(
    q: Tensor, cache: Tensor, w_uk: Tensor, w_uv: Tensor, lengths: Tensor, scale: float
) -> Tensor:
    """Causal attention of the last `q` tokens of each of B sequences (uniform decode or verify step).

    q: [B, q, N, dn+dr]. cache: [B, S, L+dr], rows at or beyond a sequence's length are padding and may hold
    anything, NaN included. w_uk: [N, dn, L]. w_uv: [N, dv, L]. lengths: [B] integer, tokens in the cache with
    this step's included, so query i sits at position `length - q + i`; a sequence of length 0 is padding and
    gets zeros.

    Returns [B, q, N, dv] in `q.dtype`; precision, rounding points and bits as in `mla_absorbed`.
    """
    steps = torch.arange(q.shape[1], device=q.device)
    return _attend(q, cache, w_uk, w_uv, lengths[:, None] - q.shape[1] + steps, scale)


def _attend(q: Tensor, cache: Tensor, w_uk: Tensor, w_uv: Tensor, positions: Tensor, scale: float) -> Tensor:
    """q [B, q, N, dn+dr], cache [B, S, L+dr], positions [B, q] → [B, q, N, dv] in `q.dtype`."""
    dtype = compute_dtype(q, cache, w_uk, w_uv)
    steps, heads = q.shape[1:3]
    dn, latent = w_uk.shape[1:]
    cache = pad_to_tile(cache, 1)  # so that the softmax, too, always runs over whole vectors
    visible = torch.arange(cache.shape[1], device=cache.device) <= positions[..., None]  # [B, q, S]
    # Zeros, since a zero weight times a NaN row would still be NaN.
    seen = cache.masked_fill(~visible.any(1)[..., None], 0).to(dtype)
    absorbed = _per_head(q[..., :dn], w_uk.to(dtype)).to(q.dtype)
    query = torch.cat([absorbed, q[..., dn:]], dim=-1).to(dtype).flatten(1, 2)
    scores = row_stable_matmul(query, seen.transpose(1, 2)).unflatten(1, (steps, heads)) * scale
    hidden = ~visible[:, :, None]
    # A query that sees nothing has NaN weights until they are zeroed.
    weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1).masked_fill(hidden, 0)
    attended = row_stable_matmul(weights.flatten(1, 2), seen[..., :latent])
    attended = attended.unflatten(1, (steps, heads)).to(q.dtype)
    return _per_head(attended, w_uv.to(dtype).transpose(1, 2)).to(q.dtype)


def _per_head(x: Tensor, weight: Tensor) -> Tensor:
    """Return each head's product: x [B, q, N, K], weight [N, K, O] → [B, q, N, O] in `weight.dtype`."""
    rows = x.flatten(0, 1).transpose(0, 1).to(weight.dtype)  # [N, B*q, K]
    return row_stable_matmul(rows, weight).transpose(0, 1).unflatten(0, x.shape[:2])
