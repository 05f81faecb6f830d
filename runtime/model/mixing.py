"""The part of attention that touches state: one sequence of any length, or uniform rows in a batch.

Both forms are exact; they differ in rounding only. Functions take state and return new state; who stores it where
(a Python list, pages of an engine) is the caller's business.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.kernels.kda.chunked import kda_chunked
from runtime.kernels.kda.reference import conv_update, kda_recurrent
from runtime.kernels.mla.reference import mla_absorbed, mla_absorbed_batched
from runtime.model.layers import KdaInputs, KdaLayer, MlaInputs, MlaLayer


@dataclass(frozen=True)
class KdaState:
    """Per-sequence KDA state: window [W-1,C] raw conv inputs, recurrent [H,V,K] FP32."""

    window: Tensor
    recurrent: Tensor


def empty_kda_state(layer: KdaLayer, dtype: torch.dtype) -> KdaState:
    """The state before the first token."""
    dim = layer.config.kda_head_dim
    window = torch.zeros(layer.config.conv_width - 1, layer.channels, dtype=dtype)
    return KdaState(window, torch.zeros(layer.heads, dim, dim, dtype=torch.float32))


def kda_sequence(layer: KdaLayer, inputs: KdaInputs, state: KdaState) -> tuple[Tensor, KdaState]:
    """One sequence of T tokens, chunked. Returns o [T,H,V] and the state after the last token."""
    y, windows = conv_update(inputs.qkv[None], state.window[None], layer.conv_weight())
    q, k, v = _heads(layer, y[0])
    o, recurrent = kda_chunked(state.recurrent, q, k, v, inputs.log_decay, inputs.beta, _scale(layer))
    return o, KdaState(windows[0, -1], recurrent)


def kda_uniform(
    layer: KdaLayer, inputs: KdaInputs, window: Tensor, recurrent: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """B sequences with q tokens each (decode q = 1, verify q = 1+K); token rows are sequence-major.

    window [B,W-1,C], recurrent [B,H,V,K] → o [B·q,H,V], windows [B,q,W-1,C], states [B,q,H,V,K]: the state after
    *every* token, because a verify step keeps the one of the last accepted token.
    """
    batch = window.shape[0]

    def rows(x: Tensor) -> Tensor:
        return x.unflatten(0, (batch, -1))

    y, windows = conv_update(rows(inputs.qkv), window, layer.conv_weight())
    q, k, v = _heads(layer, y)
    o, states = kda_recurrent(recurrent, q, k, v, rows(inputs.log_decay), rows(inputs.beta), _scale(layer))
    return o.flatten(0, 1), windows, states


def mla_sequence(layer: MlaLayer, q: Tensor, cache: Tensor, positions: Tensor) -> Tensor:
    """One sequence: q [T,N,dn+dr], cache [S,L+dr] with this step's rows, positions [T] → o [T,N,dv]."""
    w_uk, w_uv = layer.up_projections()
    return mla_absorbed(q, cache, w_uk, w_uv, positions, layer.scale)


def mla_uniform(layer: MlaLayer, q: Tensor, cache: Tensor, lengths: Tensor) -> Tensor:
    """B sequences with q tokens each: q [B·q,N,dn+dr], cache [B,S,L+dr], lengths [B] → o [B·q,N,dv]."""
    w_uk, w_uv = layer.up_projections()
    rows = q.unflatten(0, (lengths.shape[0], -1))
    return mla_absorbed_batched(rows, cache, w_uk, w_uv, lengths, layer.scale).flatten(0, 1)


def select(inputs: KdaInputs, rows: slice) -> KdaInputs:
    """The inputs of some of a step's tokens."""
    return KdaInputs(inputs.qkv[rows], inputs.log_decay[rows], inputs.beta[rows], inputs.gate[rows])


def _heads(layer: KdaLayer, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Conv output [...,C] → q, k, v [...,H,K]."""
    q, k, v = y.unflatten(-1, (3, layer.heads, layer.config.kda_head_dim)).unbind(-3)
    return q, k, v


def _scale(layer: KdaLayer) -> float:
    return float(layer.config.kda_head_dim**-0.5)


__all__ = [
    "KdaState",
    "MlaInputs",
    "empty_kda_state",
    "kda_sequence",
    "kda_uniform",
    "mla_sequence",
    "mla_uniform",
    "select",
]
