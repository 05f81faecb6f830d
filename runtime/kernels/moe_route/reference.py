"""Routing in PyTorch: the definition of the operator."""

import torch
from torch import Tensor

from runtime.kernels.common.launch.routing import Routing, group_pairs
from runtime.kernels.common.maths.precision import compute_dtype


def moe_route(
    logits: Tensor,
    correction_bias: Tensor,
    top_k: int,
    *,
    renormalize: bool = True,
    scaling: float = 1.0,
    padding: Tensor | None = None,
    first: int = 0,
    local: int | None = None,
) -> Routing:
    """Choose `top_k` experts of every token and group the tokens by expert.

    logits: [T, E] FP32. correction_bias: [E], added to the sigmoid scores for choosing only. padding: [T] bool, rows
    that choose nobody: ids -1, weights 0, no group. first, local: the experts of this rank, by default all.

    Experts are ordered by biased score, NaN first, equal ones by lower id. A weight is the expert's score, divided by
    the sum of the chosen ones + 1e-20 if `renormalize`, times `scaling`; a row with a NaN among the chosen has only
    NaN weights then. FP32 (FP64 for FP64 logits); weights are returned in that precision.
    """
    dtype = compute_dtype(logits, correction_bias)
    scores = torch.sigmoid(logits.to(dtype))
    biased = scores + correction_bias.to(dtype)
    ids = torch.sort(biased, dim=-1, descending=True, stable=True).indices[:, :top_k]
    chosen = scores.gather(1, ids)
    weights = chosen * scaling
    if renormalize:
        weights = weights / (chosen.sum(-1, keepdim=True) + 1e-20)
    if padding is not None:
        ids = ids.masked_fill(padding[:, None], -1)
        weights = weights.masked_fill(padding[:, None], 0)
    return group_pairs(ids, weights, first=first, local=logits.shape[1] if local is None else local)
