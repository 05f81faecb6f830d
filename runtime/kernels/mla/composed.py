"""A decode or verify step of one MLA layer on the engine's pages, in PyTorch: what the launches are compared with.

Four pieces, as the kernels are cut: `mla_query` (norm, q_b, absorption), `mla_core` (the new cache rows and the
attention), `mla_value` (merge, W_UV, gate). The sizes are those of `reference`; T = B q tokens, request by request.
"""

import torch
from torch import Tensor

from runtime.kernels.common.maths.norms import rms_norm
from runtime.kernels.common.maths.precision import compute_dtype
from runtime.kernels.mla.sharded import merge_partials, mla_partial, shard_length, shard_positions


def mla_query(q_a: Tensor, norm: Tensor, w_qb: Tensor, w_uk: Tensor, eps: float) -> Tensor:
    """q_a [T, R], norm [R], w_qb [N (dn+dr), R], w_uk [N, dn, L] → absorbed query [T, N, L+dr] in `q_a.dtype`.

    Rounding points: the normed input, the query, the absorbed query.
    """
    dtype = compute_dtype(q_a, w_qb)
    heads, dn, _ = w_uk.shape
    c_q = rms_norm(q_a, norm, eps).to(q_a.dtype)
    q = (c_q.to(dtype) @ w_qb.to(dtype).T).to(q_a.dtype).unflatten(1, (heads, -1))
    absorbed = torch.einsum("tnd,ndl->tnl", q[..., :dn].to(dtype), w_uk.to(dtype)).to(q_a.dtype)
    return torch.cat([absorbed, q[..., dn:]], dim=-1)


def new_rows(kv_a: Tensor, norm: Tensor, eps: float) -> Tensor:
    """kv_a [T, L+dr], norm [L] → this step's cache rows [T, L+dr]: the normed latent and the shared key."""
    latent = norm.shape[0]
    return torch.cat([rms_norm(kv_a[:, :latent], norm, eps).to(kv_a.dtype), kv_a[:, latent:]], dim=-1)


def mla_core(
    query: Tensor,
    kv_a: Tensor,
    norm: Tensor,
    cache: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    slots: Tensor,
    *,
    eps: float,
    scale: float,
    ranks: int = 1,
    rank: int = 0,
) -> tuple[Tensor, Tensor]:
    """Store this step's rows in the pages, and attend to them and all before them.

    query: [T, N, L+dr]. kv_a: [T, L+dr]. norm: [L]. cache: [pages, block, L+dr], updated in place. block_table: [B, W],
    -1 where there is none. lengths: [B], tokens of a request with this step's q, on all ranks; a request
    of length 0 is padding. slots: [T], page · block + row of each new row, negative where it is not to be stored.
    ranks, rank: of decode context parallelism, whose rank r holds positions r, r + R, …: tables and slots are its own.

    A row on a page of -1 is not there. The new rows are taken from `kv_a`, whatever the pages hold in their place.
    Returns (o [T, N, L], lse [T, N]) as `mla_partial`; a query that sees no row here gets zeros and -inf.
    """
    rows, latent, tokens = new_rows(kv_a, norm, eps), norm.shape[0], len(query) // len(lengths)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            cache[slot // cache.shape[1], slot % cache.shape[1]] = rows[token]
    parts = []
    for request, length in enumerate(lengths.tolist()):
        mine = slice(request * tokens, (request + 1) * tokens)
        held, there = _held(cache, block_table[request], shard_length(length, ranks, rank))
        positions = shard_positions(len(held), ranks, rank).to(cache.device)
        new = positions >= length - tokens
        held[new] = rows[mine][positions[new] - (length - tokens)]
        limits = length - tokens + torch.arange(tokens, device=cache.device)
        visible = (there | new) & (positions <= limits[:, None])
        parts.append(mla_partial(query[mine], held, visible, scale, latent))
    o, lse = (torch.cat(part) for part in zip(*parts, strict=True))
    return o, lse


def _held(cache: Tensor, table: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The first `length` rows of a request and whether they are there; rows that are not there are zeros."""
    positions = torch.arange(length, device=cache.device)
    pages = table[positions // cache.shape[1]].long()
    there = pages >= 0
    held = cache[pages.clamp_min(0), positions % cache.shape[1]]
    return held.masked_fill(~there[:, None], 0), there


def mla_value(o: Tensor, lse: Tensor, w_uv: Tensor, gate: Tensor) -> Tensor:
    """o [P, T, N, L] and lse [P, T, N] of P parts, w_uv [N, dv, L], gate [T, N dv] → [T, N dv] in `gate.dtype`.

    The parts merged, projected and gated. Rounding points: the merged latent, the value, the result.
    """
    merged = merge_partials(o, lse)[0].to(gate.dtype)
    dtype = compute_dtype(merged, w_uv)
    value = torch.einsum("tnl,nvl->tnv", merged.to(dtype), w_uv.to(dtype)).to(gate.dtype).flatten(1)
    return (value.to(dtype) * torch.sigmoid(gate.to(dtype))).to(gate.dtype)
