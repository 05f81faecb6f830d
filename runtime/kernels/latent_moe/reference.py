"""Router, routed experts and gated MLP of LatentMoE in PyTorch: the definition of the operator.

Sizes: T tokens, E experts of which k per token, R input (latent) dims, I intermediate dims.
"""

import torch
from torch import Tensor

from runtime.kernels.common.activations import situ
from runtime.kernels.common.linear import row_stable_linear
from runtime.kernels.common.precision import compute_dtype


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
    tokens, top_k = topk_ids.shape
    expert_of_pair = topk_ids.flatten()
    order = torch.argsort(expert_of_pair, stable=True)  # pairs (token, slot) grouped by expert
    rows = x.new_empty(tokens * top_k, w2.shape[1])
    first = 0
    for expert, count in enumerate(torch.bincount(expert_of_pair, minlength=w1.shape[0]).tolist()):
        if count == 0:
            continue
        pairs = order[first : first + count]
        rows[pairs] = gated_mlp(x[pairs // top_k], w1[expert], w3[expert], w2[expert], beta, linear_beta)
        first += count
    dtype = compute_dtype(x, topk_weights)
    slots = rows.unflatten(0, (tokens, top_k)).to(dtype) * topk_weights.to(dtype)[..., None]
    total = slots[:, 0]
    for slot in range(1, top_k):
        total = total + slots[:, slot]
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
