"""Kimi Delta Attention token by token in PyTorch: the definition of the operator.

Explicit state in, state out; nothing is updated in place. Sizes: N sequences, T (or q) tokens,
C convolution channels of width W, H heads, K key channels and V value channels per head.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from runtime.kernels.common.maths.norms import l2_norm, rms_norm
from runtime.kernels.common.maths.precision import compute_dtype


def conv_update(x: Tensor, window: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Depthwise causal convolution and SiLU of q new tokens, with the window after each of them.

    x: [N, q, C] raw inputs. window: [N, W-1, C] the raw inputs before them, oldest first, zeros at the start
    of a sequence. weight: [C, W], tap 0 on the oldest input, tap W-1 on the current one.

    Returns (y, windows): y [N, q, C] after SiLU, in FP32 (FP64 for FP64 operands); windows [N, q, W-1, C] in
    `window.dtype`, where `windows[:, t]` is the window to continue with if tokens 0..t are kept.
    Rounding point: a raw input is rounded to `window.dtype` before any tap reads it, so a token's result does
    not depend on whether its taps come from `x` or from a stored window. Taps are added oldest first.
    """
    dtype = compute_dtype(x, window, weight)
    tokens, taps = x.shape[1], weight.shape[1]
    history = torch.cat([window, x.to(window.dtype)], dim=1)
    wide, tap_weight = history.to(dtype), weight.to(dtype)
    y = sum(wide[:, tap : tap + tokens] * tap_weight[:, tap] for tap in range(taps))
    windows = history.unfold(1, taps - 1, 1)[:, 1:].transpose(2, 3).contiguous()
    return F.silu(y), windows


def bounded_gate(raw_g: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float | None) -> Tensor:
    """Return the log decay per key channel, in FP32 (FP64 for FP64 operands); always ≤ 0.

    raw_g: [..., H, K] output of the forget projection. A_log: [H]. dt_bias: [H, K].
    With a `lower_bound` L < 0 (K3: -5): `L·sigmoid(exp(A_log)·(raw_g + dt_bias))`, so the decay of a token
    stays above exp(L). Without (Kimi-Linear): `-exp(A_log)·softplus(raw_g + dt_bias)`, linear above 20.

    Raises ValueError if `lower_bound` is not negative.
    """
    if lower_bound is not None and not lower_bound < 0:
        raise ValueError(f"lower_bound must be negative, got {lower_bound}")
    dtype = compute_dtype(raw_g, A_log, dt_bias)
    slope = A_log.to(dtype).exp()[:, None]
    biased = raw_g.to(dtype) + dt_bias.to(dtype)
    if lower_bound is None:
        return -slope * F.softplus(biased, threshold=20.0)
    return lower_bound * torch.sigmoid(slope * biased)


def kda_step(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """One token of the gated delta rule for N sequences.

    state: [N, H, V, K], row = value channel. q, k: [N, H, K] and v: [N, H, V], outputs of the convolution;
    q and k are L2-normalised here and q is multiplied by `scale`.
    log_decay: [N, H, K]. beta: [N, H] in (0, 1).

    Returns (o, state): o [N, H, V] in FP32 (FP64 for FP64 operands); the new state in `state.dtype`, the only
    rounding point (none for an FP32 state). Products are multiply-and-sum, so a sequence's bits do not depend
    on the others in the batch.
    """
    o, new_state = _advance(state, q, k, v, log_decay, beta, scale)
    return o, new_state.to(state.dtype)


def kda_recurrent(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """T tokens of the gated delta rule, with the state after each of them (the speculative-verify form).

    state: [N, H, V, K]. q, k, log_decay: [N, T, H, K]. v: [N, T, H, V]. beta: [N, T, H].

    Returns (o, states): o [N, T, H, V] in FP32 (FP64 for FP64 operands); states [N, T, H, V, K] in
    `state.dtype`, where `states[:, t]` is the state if tokens 0..t are accepted. The running state is rounded
    only where it is stored: with a BF16 state, T tokens in one call differ from T calls of `kda_step`.
    """
    o = v.new_empty(v.shape, dtype=compute_dtype(state, q, k, v, log_decay, beta))
    states = state.new_empty(state.shape[0], q.shape[1], *state.shape[1:])
    running = state
    for t in range(q.shape[1]):
        o[:, t], running = _advance(running, q[:, t], k[:, t], v[:, t], log_decay[:, t], beta[:, t], scale)
        states[:, t] = running
    return o, states


def gated_norm(o: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
    """Return `RMSNorm(o) · weight · sigmoid(gate)`, rounded once to `gate.dtype`.

    o: [..., H, V] attention output. weight: [V], shared by the heads. gate: [..., H, V] raw output-gate
    projection in the model's dtype.
    """
    dtype = compute_dtype(o, weight, gate)
    return (rms_norm(o.to(dtype), weight, eps) * torch.sigmoid(gate.to(dtype))).to(gate.dtype)


def _advance(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the output and the unrounded new state of one token; order: decay, error, update, read."""
    dtype = compute_dtype(state, q, k, v, log_decay, beta)
    query = (l2_norm(q.to(dtype)) * scale)[:, :, None]  # [N, H, 1, K]
    key = l2_norm(k.to(dtype))[:, :, None]
    decayed = state.to(dtype) * log_decay.to(dtype).exp()[:, :, None]
    error = v.to(dtype) - (decayed * key).sum(-1)  # [N, H, V]
    updated = decayed + (beta.to(dtype)[..., None] * error)[..., None] * key
    return (updated * query).sum(-1), updated
