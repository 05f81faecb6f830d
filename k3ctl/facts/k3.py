"""Kimi K3's dimensions, as far as bytes and operations depend on them, and the limits of its specialized decode.

Sources: vLLM 0.33.0's Kimi K3 code (shape tables, guards, cache calculators) and the public config of the
checkpoint; parameter and byte totals derived from them match the published 2.8T, 104B active and 1.56 TB.
``tests/facts`` compares all of it with ``runtime``, which states it for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BF16, FP32 = 2, 4
MXFP4 = 0.5 + 1 / 32
"""Bytes per weight: a 4-bit value and one E8M0 scale byte per 32 of them."""
EXPERT_PARTITION_FLOOR = 256
"""Smallest expert intermediate size per rank that vLLM's MXFP4 kernels take; smaller ones are zero-padded."""

SPECIALIZED_ROWS = 64
"""Most query tokens (rows) of a step for which the specialized path has kernels (vLLM 0.33.0, ``PREPARED_MAX``)."""
SPECIALIZED_TP = (8, 16)
"""Tensor-parallel sizes that it takes."""
SPECIALIZED_DRAFTS = 7
"""Most draft tokens per request that it takes: a verify step has at most 8 rows per request."""
MAX_POSITIONS = 1_048_576
"""Longest context of the checkpoint, which ``--max-model-len auto`` starts from."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a Kimi K3 text model; the defaults are the published checkpoint's."""

    hidden: int = 7168
    vocab: int = 163_840
    layers: int = 93
    mla_layers: tuple[int, ...] = (*range(3, 92, 4), 92)
    """0-based indices of the MLA layers; the others are KDA layers."""
    dense_layers: int = 1
    dense_intermediate: int = 33_792
    heads: int = 96
    head_dim: int = 128
    conv_width: int = 4
    q_lora: int = 1536
    kv_lora: int = 512
    rope_dim: int = 64
    experts: int = 896
    experts_per_token: int = 16
    latent: int = 3584
    expert_intermediate: int = 3072
    shared_intermediate: int = 2 * 3072
    residual_block: int = 12

    @property
    def kda_layers(self) -> int:
        """Number of KDA layers."""
        return self.layers - len(self.mla_layers)

    @property
    def moe_layers(self) -> int:
        """Number of MoE layers."""
        return self.layers - self.dense_layers

    @property
    def kv_width(self) -> int:
        """Cached numbers per token and MLA layer: the latent and the position-free key part."""
        return self.kv_lora + self.rope_dim

    def stages(self, pipeline: int) -> tuple[range, ...]:
        """Layer ranges of the pipeline stages, divided as vLLM does: extra layers go to the earlier stages.

        vLLM gives what is left over one layer each to the stages before the last one, from the back.
        """
        sizes = [self.layers // pipeline] * pipeline
        for back in range(2, self.layers % pipeline + 2):
            sizes[-back] += 1
        starts = [sum(sizes[:stage]) for stage in range(pipeline)]
        return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


K3 = Shape()


K3_MOE: Mapping[str, Any] = {
    "hidden_act": "situ",
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "num_experts": 896,
    "num_experts_per_token": 16,
    "num_expert_group": 1,
    "topk_group": 1,
    "moe_router_activation_func": "sigmoid",
}
"""The MoE that the specialized path is built for, by the names in a model's text config."""


def is_k3_moe(text_config: Mapping[str, Any]) -> bool:
    """Whether a model's text config has Kimi K3's MoE."""
    return all(text_config.get(key) == value for key, value in K3_MOE.items())
