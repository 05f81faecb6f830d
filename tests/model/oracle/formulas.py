"""The formulas. T tokens, D hidden, H KDA heads of K channels, N MLA heads, E experts. FP64 everywhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ids = NDArray[np.int64]

L2_EPS = 1e-6
ROUTER_EPS = 1e-20
SOFTPLUS_IS_LINEAR_ABOVE = 20.0


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x)."""
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    """Over the last axis."""
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def log_softmax(x: Array) -> Array:
    """Over the last axis."""
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x over its root mean square, times a weight per channel."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def situ(gate: Array, up: Array, beta: float, linear_beta: float) -> Array:
    """SiLU and its linear partner, both bent to a bound by a tanh."""
    return beta * np.tanh(gate / beta) * sigmoid(gate) * linear_beta * np.tanh(up / linear_beta)


def mlp(x: Array, gate: Array, up: Array, down: Array, beta: float, linear_beta: float) -> Array:
    """The gated MLP: dense, shared, and one routed expert."""
    return situ(x @ gate.T, x @ up.T, beta, linear_beta) @ down.T


def mixture(sources: list[Array], norm: Array, vector: Array, eps: float) -> Array:
    """Attention residual: a source [T,D] is scored by <RMSNorm(source), vector>; the sources themselves are mixed."""
    scores = np.stack([rms_norm(source, norm, eps) @ vector for source in sources], axis=-1)
    share = softmax(scores)
    return sum(share[:, i, None] * source for i, source in enumerate(sources))  # type: ignore[return-value]


def short_convolution(u: Array, taps: Array) -> Array:
    """Depthwise and causal, then SiLU. u [T,C]; taps [C,W]: the last one meets the current token."""
    width = taps.shape[1]
    y = np.zeros_like(u)
    for t in range(u.shape[0]):
        for age in range(min(width, t + 1)):
            y[t] += taps[:, width - 1 - age] * u[t - age]
    return y * sigmoid(y)


def log_decay(raw: Array, a_log: Array, dt_bias: Array, lower_bound: float | None) -> Array:
    """raw, dt_bias [...,H,K], a_log [H]: bounded below by ``lower_bound``, or Kimi-Linear's softplus without one."""
    slope, x = np.exp(a_log)[:, None], raw + dt_bias
    if lower_bound is not None:
        return lower_bound * sigmoid(slope * x)
    return -slope * np.where(x > SOFTPLUS_IS_LINEAR_ABOVE, x, np.log1p(np.exp(np.minimum(x, 50))))


def l2_norm(x: Array) -> Array:
    """x over its length."""
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + L2_EPS)


def delta_rule(q: Array, k: Array, v: Array, decay: Array, beta: Array) -> Array:
    """Gated delta rule, token by token, from an empty memory.

    q, k and decay (a log) [T,H,K], v [T,H,V], beta [T,H] → [T,H,V]. The memory first forgets, then learns the value
    it predicts wrongly for k, then answers q.
    """
    tokens, heads, channels = k.shape
    memory = np.zeros((heads, channels, v.shape[2]))
    answers = np.zeros(v.shape)
    for t in range(tokens):
        memory = memory * np.exp(decay[t])[:, :, None]
        surprise = v[t] - np.einsum("hk,hkv->hv", k[t], memory)
        memory = memory + np.einsum("h,hk,hv->hkv", beta[t], k[t], surprise)
        answers[t] = np.einsum("hk,hkv->hv", q[t], memory)
    return answers


def causal_attention(q: Array, k: Array, v: Array, scale: float) -> Array:
    """q, k [T,N,·], v [T,N,dv] → [T,N,dv]: each token sees itself and what came before."""
    scores = np.einsum("tnd,snd->nts", q, k) * scale
    future = np.triu(np.ones(scores.shape[1:], dtype=bool), 1)
    return np.einsum("nts,snv->tnv", softmax(np.where(future, -np.inf, scores)), v)


def choose(scores: Array, bias: Array, count: int) -> Ids:
    """The ``count`` experts [T,count] of the highest biased score; of equals, the lower id."""
    return np.argsort(-(scores + bias), axis=-1, kind="stable")[:, :count]


def closest_choice(scores: Array, bias: Array, count: int) -> float:
    """How little the last expert chosen beat the first one left out, over all tokens."""
    ranked = -np.sort(-(scores + bias), axis=-1)
    return float((ranked[:, count - 1] - ranked[:, count]).min())


def expert_weights(scores: Array, chosen: Ids, renormalize: bool, scaling: float) -> Array:
    """The chosen experts' own scores [T,k], to a sum of one if asked, times the scaling factor."""
    weights = np.take_along_axis(scores, chosen, axis=-1)
    if renormalize:
        weights = weights / (weights.sum(-1, keepdims=True) + ROUTER_EPS)
    return weights * scaling
