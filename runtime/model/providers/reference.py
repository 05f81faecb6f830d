"""Every slot from the layers in PyTorch: what a step is held to, and what the CPU engine serves.

Attention is projections, a mixer that touches the state, and an output projection. The mixer is whoever keeps the
state: a Python list, or an engine's pages.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from torch import Tensor

from runtime.model.layers import DecoderLayer, KdaInputs, KdaLayer, MlaInputs, MlaLayer
from runtime.model.step import LayerSlots


class AttentionMixer(Protocol):
    """Runs the stateful part of one layer for all tokens of a step."""

    def kda(self, index: int, layer: KdaLayer, inputs: KdaInputs) -> Tensor:
        """→ o [T,H,V] FP32."""
        ...

    def mla(self, index: int, layer: MlaLayer, inputs: MlaInputs) -> Tensor:
        """→ o [T,N,dv]."""
        ...


def attend(index: int, layer: KdaLayer | MlaLayer, mixer: AttentionMixer, x: Tensor) -> Tensor:
    """One attention block: x [T,D] → [T,D], its state handled by ``mixer``."""
    if isinstance(layer, KdaLayer):
        kda = layer.project(x)
        return layer.output(mixer.kda(index, layer, kda), kda.gate)
    mla = layer.project(x)
    return layer.output(mixer.mla(index, layer, mla), mla.gate)


def slots(layer: DecoderLayer, mixer: AttentionMixer) -> LayerSlots:
    """``layer`` ready to run; nothing is updated in place."""
    return LayerSlots(
        index=layer.index,
        starts_block=layer.write is not None,
        mix_attention=layer.before_attention,
        attend=partial(attend, layer.index, layer.self_attn, mixer),
        mix_feed_forward=layer.before_feed_forward,
        feed_forward=layer.feed_forward,
    )
