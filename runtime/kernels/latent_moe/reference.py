"""Router, routed experts and gated MLP of LatentMoE in PyTorch: the definition of the operator.

Sizes: T tokens, E experts of which k per token, R input (latent) dims, I intermediate dims.
"""

import torch
from torch import Tensor

from runtime.kernels.common.maths.activations import situ
from runtime.kernels.common.maths.linear import TILE, row_stable_grouped_linear, row_stable_linear
from runtime.kernels.common.maths.precision import compute_dtype


def route(
    logits: Tensor, correction_bias: Tensor, top_k: int, renormalize: bool, scaling: float
) -> tuple[Tensor, Tensor]:
    """Choose `top_k` experts per token and their weights.

    logits: [T, E], FP32. correction_bias: [E], added to the sigmoid scores for choosing only, never to a
    weight. Experts are ordered by biased score, equal ones by lower id.

    Returns (topk_weights [T, k] in FP32 (FP64 for FP64 logits), topk_ids [T, k] int64). A weight is the
    expert's sigmoid score, divided by the sum of the chosen ones (+1e-20) if `renormalize`, times `scaling`.

    Raises ValueError if `top_k` exceeds E.
    """
    if not 0 < top_k <= logits.shape[1]:
        raise ValueError(f"top_k is {top_k}, but the router has {logits.shape[1]} experts")
    scores = torch.sigmoid(logits.to(compute_dtype(logits)))
    order = torch.sort(scores + correction_bias, dim=-1, descending=True, stable=True).indices
    topk_ids = order[:, :top_k]
    chosen = scores.gather(1, topk_ids)
    topk_weights = chosen * scaling
    if renormalize:
        topk_weights = topk_weights / (chosen.sum(-1, keepdim=True) + 1e-20)
    return topk_weights, topk_ids


def experts(
    x: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    w1: Tensor,
    w3: Tensor,
    w2: Tensor,
    beta: float,
    linear_beta: float,
) -> Tensor:
    """Return `sum_e weight_e · W2_e situ(W1_e x, W3_e x)` over each token's chosen experts.

    x: [T, R]. topk_weights, topk_ids: [T, k]. w1 (gate), w3 (up): [E, I, R]. w2: [E, R, I].

    Returns [T, R] in `x.dtype`. Rounding points, all to `x.dtype`: gate and up products, activation, each
    expert's row, and the sum, which is accumulated in FP32 (FP64 for FP64 operands) in the order of the
    token's slots. A token's bits do not depend on the other tokens (`row_stable_linear`).
    """
    dtype = compute_dtype(x, topk_weights)
    rows = _expert_rows(x, topk_ids, w1, w3, w2, beta, linear_beta).to(dtype)
    weighted = rows * topk_weights.to(dtype)[..., None]
    total = weighted[:, 0]
    for slot in range(1, topk_ids.shape[1]):
        total = total + weighted[:, slot]
    return total.to(x.dtype)


def gated_mlp(
    x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, beta: float, linear_beta: float
) -> Tensor:
    """Return `w_down situ(w_gate x, w_up x)`: the dense and the shared-expert MLP, and one routed expert.

    x: [..., R]. w_gate, w_up: [I, R]. w_down: [R, I]. Returns [..., R] in `x.dtype`, which every product
    and the activation are rounded to. A row's bits do not depend on the other rows (`row_stable_linear`).
    """
    hidden = situ(row_stable_linear(x, w_gate), row_stable_linear(x, w_up), beta, linear_beta)
    return row_stable_linear(hidden, w_down)


def _expert_rows(
    x: Tensor, topk_ids: Tensor, w1: Tensor, w3: Tensor, w2: Tensor, beta: float, linear_beta: float
) -> Tensor:
    """Return what each chosen expert makes of its token, unweighted: [T, k, R] in `x.dtype`.

    The pairs (token, slot) are grouped by expert, each group in whole tiles of rows so that one activation
    serves all groups and no row's bits depend on the size of its group.
    """
    counts = torch.bincount(topk_ids.flatten(), minlength=w1.shape[0])
    sizes = torch.div(counts + TILE - 1, TILE, rounding_mode="floor") * TILE
    expert_of_pair, order = torch.sort(topk_ids.flatten(), stable=True)
    rank = torch.arange(order.numel(), device=x.device) - (counts.cumsum(0) - counts)[expert_of_pair]
    place = (sizes.cumsum(0) - sizes)[expert_of_pair] + rank  # row of each sorted pair in the grouped rows
    group_sizes = sizes.tolist()
    grouped = x.new_zeros(sum(group_sizes), x.shape[1])
    grouped[place] = x[order // topk_ids.shape[1]]
    gate = row_stable_grouped_linear(grouped, w1, group_sizes)
    up = row_stable_grouped_linear(grouped, w3, group_sizes)
    down = row_stable_grouped_linear(situ(gate, up, beta, linear_beta), w2, group_sizes)
    rows = down.new_empty(topk_ids.numel(), down.shape[1])
    rows[order] = down[place]
    return rows.unflatten(0, topk_ids.shape)
