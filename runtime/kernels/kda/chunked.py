"""Kimi Delta Attention in chunks (WY form) in PyTorch: what a prefill kernel computes.

Equal to the token-by-token recurrence in exact arithmetic. Inside a chunk, with G the running sum of log
decays and u_i the corrected value that token i adds to the state,

    u_i = beta_i (v_i - S_0 (k_i ∘ e^{G_i}) - sum_{j<i} <k_i, k_j ∘ e^{G_i-G_j}> u_j)    (triangular solve)
    o_i = S_0 (q_i ∘ e^{G_i}) + sum_{j<=i} <q_i, k_j ∘ e^{G_i-G_j}> u_j
    S_C = S_0 ∘ e^{G_C} + sum_j u_j (k_j ∘ e^{G_C-G_j})^T

No exponential here has a positive argument: e^{G_i-G_j} is never split into e^{G_i} · e^{-G_j}, whose second
factor overflows FP32 after 18 tokens at K3's lower bound of -5 (and FP64 after 142).
"""

import torch
from torch import Tensor

from runtime.kernels.common.maths.norms import l2_norm
from runtime.kernels.common.maths.precision import compute_dtype

SUB_CHUNK = 16  # tokens whose pairwise decays are formed directly, as differences


def kda_chunked(
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    scale: float,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:
    """Gated delta rule over one sequence of T ≥ 0 tokens.

    state: [H, V, K]. q, k: [T, H, K] and v: [T, H, V], outputs of the convolution; q and k are L2-normalised
    here and q is multiplied by `scale`. log_decay: [T, H, K], ≤ 0. beta: [T, H].

    Returns (o, state): o [T, H, V] in FP32 (FP64 for FP64 operands); the state after the last token in
    `state.dtype`, the only rounding point (chunk boundaries do not round). Running sums of log decays are
    FP64. Results differ from the recurrence, and between chunk sizes or cuts, in the last bits only.
    """
    dtype = compute_dtype(state, q, k, v, log_decay, beta)
    # Heads first: [H, T, *].
    query = (l2_norm(q.to(dtype)) * scale).transpose(0, 1)
    key = l2_norm(k.to(dtype)).transpose(0, 1)
    value, gate, rate = v.to(dtype).transpose(0, 1), log_decay.transpose(0, 1), beta.to(dtype).transpose(0, 1)
    running = state.to(dtype)
    outputs = [value[:, :0]]
    for start in range(0, q.shape[0], chunk_size):
        part = slice(start, start + chunk_size)
        o, running = _chunk(
            running, query[:, part], key[:, part], value[:, part], gate[:, part], rate[:, part]
        )
        outputs.append(o)
    return torch.cat(outputs, dim=1).transpose(0, 1).contiguous(), running.to(state.dtype)


def _chunk(
    state: Tensor, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Return (o [H, C, V], new state) of one chunk.

    query, key, log_decay: [H, C, K]. value: [H, C, V]. beta: [H, C].
    """
    dtype = state.dtype
    # FP64: differences of sums that reach -320 would lose 2e-5 of relative accuracy in FP32.
    total = log_decay.to(torch.float64).cumsum(1)
    from_start = total.exp().to(dtype)
    to_end = (total[:, -1:] - total).exp().to(dtype)
    key_key, query_key = _pair_products(torch.stack([key, query]), key, total)
    carried = torch.matmul(key * from_start, state.transpose(1, 2))  # [H, C, V] = S_0 (k ∘ e^G)
    system = beta[..., None] * key_key.tril(-1)  # unit diagonal implied
    corrected = torch.linalg.solve_triangular(
        system, beta[..., None] * (value - carried), upper=False, unitriangular=True
    )
    o = torch.matmul(query * from_start, state.transpose(1, 2)) + torch.matmul(query_key.tril(), corrected)
    added = torch.matmul(corrected.transpose(1, 2), key * to_end)
    return o, state * from_start[:, -1, None] + added


def _pair_products(left: Tensor, key: Tensor, total: Tensor) -> Tensor:
    """Return [P, H, C, C] with `<left_i, key_j ∘ e^{G_i-G_j}>` for j ≤ i; the entries above are not used.

    left: [P, H, C, K]. key: [H, C, K]. total: [H, C, K] running sums G in FP64.
    Pairs inside a sub-chunk use the difference itself. Earlier keys j meet sub-chunk rows i through
    the sum R before the sub-chunk's first token: e^{G_i-R} and e^{R-G_j} both have arguments ≤ 0.
    """
    size, dtype = key.shape[1], key.dtype
    products = left.new_zeros(*left.shape[:3], size)
    for first in range(0, size, SUB_CHUNK):
        rows = slice(first, min(first + SUB_CHUNK, size))
        difference = (total[:, rows, None] - total[:, None, rows]).clamp(max=0.0)
        weighted = key[:, None, rows] * difference.exp().to(dtype)  # [H, i, j, K]
        products[:, :, rows, rows] = (left[:, :, rows, None] * weighted).sum(-1)
        if first > 0:
            pivot = total[:, first - 1, None]
            later = left[:, :, rows] * (total[:, rows] - pivot).exp().to(dtype)
            earlier = key[:, :first] * (pivot - total[:, :first]).exp().to(dtype)
            products[:, :, rows, :first] = torch.matmul(later, earlier.transpose(1, 2))
    return products
