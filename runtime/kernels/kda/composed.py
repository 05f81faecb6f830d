"""The fused operator in PyTorch, over packed projections and paged caches: what the kernels must equal."""

import torch
from torch import Tensor
from torch.nn import functional as F

from runtime.kernels.common.maths.precision import compute_dtype
from runtime.kernels.kda.reference import bounded_gate, conv_update, gated_norm, kda_recurrent


def kda_decode_composed(
    projected: Tensor,
    f_b: Tensor,
    conv_weight: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    conv_state: Tensor,
    state: Tensor,
    slots: Tensor,
    accepted: Tensor | None,
    out: Tensor,
    *,
    lower_bound: float,
    eps: float,
) -> None:
    """Decode (one token) or verify (q tokens) of N requests; writes `out`, `conv_state` and `state` in place.

    projected: [N q, ≥ 4 H K + K + H] rows `[q | k | v | output gate | f_a | beta]`; K = V = the head size.
    f_b: [H K, K]. conv_weight: [3 H K, 4]. A_log: [H]. dt_bias: [H, K]. norm_weight: [K].
    conv_state: [S, W, 3 H K], W ≥ q + 2. state: [S, H, V, K]. slots: [N, q] int32. accepted: [N] int32 in 1…q, or
    None for one token. out: [N q, H K].

    Request n starts from state slot `slots[n, accepted[n] - 1]`; token t leaves its state in `slots[n, t]`. The
    window is read from `conv_state[slots[n, 0], accepted[n] - 1:]` and replaced by its two newest taps followed by
    the inputs of the step. A request whose starting slot is ≤ 0 is padding: its outputs are zero and nothing else
    is written; a token slot ≤ 0 keeps no state. Rounding points: those of `reference`, and the forget projection
    (to `f_b.dtype`).
    """
    requests, tokens = slots.shape
    heads, size = A_log.shape[0], norm_weight.shape[0]
    width = heads * size
    rows = projected.view(requests, tokens, -1)
    for n in range(requests):
        start = 0 if accepted is None else int(accepted[n]) - 1
        places = [int(slot) for slot in slots[n]]
        target = out[n * tokens : (n + 1) * tokens]
        if places[start] <= 0:
            target.zero_()
            continue
        qkv, gate, f_a, beta = (
            part[None]
            for part in rows[n, :, : 4 * width + size + heads].split([3 * width, width, size, heads], -1)
        )
        window = conv_state[places[0], start : start + 3][None]
        mixed, _ = conv_update(qkv, window, conv_weight)
        q, k, v = (part.unflatten(-1, (heads, size)) for part in mixed.split(width, -1))
        wide = compute_dtype(f_b)
        raw_g = F.linear(f_a.to(wide), f_b.to(wide)).to(f_b.dtype).unflatten(-1, (heads, size))
        log_decay = bounded_gate(raw_g, A_log, dt_bias, lower_bound)
        o, states = kda_recurrent(
            state[places[start]][None], q, k, v, log_decay, torch.sigmoid(beta.to(mixed.dtype)), size**-0.5
        )
        y = gated_norm(o, norm_weight, gate.unflatten(-1, (heads, size)), eps)
        target.copy_(y[0].flatten(1))
        conv_state[places[0], : tokens + 2] = torch.cat([window[0, 1:], qkv[0].to(conv_state.dtype)])
        for t, place in enumerate(places):
            if place > 0:
                state[place] = states[0, t]
