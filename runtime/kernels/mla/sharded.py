"""Latent attention over a part of the context, and the merge of parts, in PyTorch: the (o, LSE) form.

A part is what one rank of decode context parallelism holds, or one split of a kernel. It gives the attention over its
own rows and the log-sum-exp of its scores; from these the attention over all rows follows exactly.
"""

import torch
from torch import Tensor

from runtime.kernels.common.maths.precision import compute_dtype


def shard_positions(rows: int, ranks: int, rank: int) -> Tensor:
    """Absolute positions [rows] of the first rows of a rank: rank r of R holds r, r + R, r + 2 R, …"""
    return torch.arange(rows) * ranks + rank


def shard_length(length: int, ranks: int, rank: int) -> int:
    """How many of `length` positions a rank holds."""
    return max(0, -(-(length - rank) // ranks))


def mla_partial(
    query: Tensor, rows: Tensor, visible: Tensor, scale: float, latent: int
) -> tuple[Tensor, Tensor]:
    """Absorbed attention over some of the rows.

    query: [T, N, L+dr], absorbed. rows: [S, L+dr]. visible: [T, S] bool. latent: L, what of a row is its value. Rows
    that no query sees may hold anything, NaN included.

    Returns (o [T, N, L], lse [T, N]) in FP32 (FP64 for FP64 operands), unrounded. A query that sees no row gets zeros
    and -inf.
    """
    dtype = compute_dtype(query, rows)
    seen = rows.masked_fill(~visible.any(0)[:, None], 0).to(dtype)
    scores = torch.einsum("tnk,sk->tns", query.to(dtype), seen) * scale
    scores = scores.masked_fill(~visible[:, None], -torch.inf)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0)[..., None])
    return torch.einsum("tns,sl->tnl", weights, seen[:, :latent]), lse


def merge_partials(o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The attention over all rows from that over P disjoint parts.

    o: [P, ..., L]. lse: [P, ...], -inf for a part without rows, whose `o` may then hold anything.

    Returns (o [..., L], lse [...]) in FP32 (FP64 for FP64 operands), unrounded; zeros and -inf where every part is
    empty. The parts are added in order. A part may lie any distance below another: its weight
    underflows to 0 and no exponent is positive.
    """
    dtype = compute_dtype(o, lse)
    lse = lse.to(dtype)
    top = lse.amax(0)
    top = top.masked_fill(top == -torch.inf, 0)
    total, merged = torch.zeros_like(top), torch.zeros(o.shape[1:], dtype=dtype, device=o.device)
    for part in range(o.shape[0]):
        weight = torch.exp(lse[part] - top)
        total = total + weight
        merged = merged + weight[..., None] * o[part].to(dtype).masked_fill((weight == 0)[..., None], 0)
    empty = total == 0
    merged = (merged / total.masked_fill(empty, 1)[..., None]).masked_fill(empty[..., None], 0)
    return merged, torch.log(total) + top
