"""Kimi K3's sizes, read from the checkpoint's ``config.json``.

Every size is a field. ``FULL_SIZE`` holds the published K3's values: dimensions recovered from vLLM 0.33.0's shape
tables and, where it has none (layer list, block size 12, eps, scaling factor), from public material quoting the
checkpoint; its totals reproduce the published 2.8T parameters, 104B active and 1.56 TB (``tests/model``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class K3Config:
    """Sizes and constants of the K3 text model. Layer indices are 0-based (``config.json`` lists them 1-based)."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    rms_norm_eps: float
    attn_res_block_size: int

    kda_layers: frozenset[int]
    kda_num_heads: int
    kda_head_dim: int
    conv_width: int
    gate_lower_bound: float | None
    kda_norm_eps: float

    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    first_k_dense_replace: int
    intermediate_size: int
    num_experts: int
    num_experts_per_token: int
    moe_intermediate_size: int
    routed_expert_hidden_size: int
    num_shared_experts: int
    moe_renormalize: bool
    routed_scaling_factor: float
    situ_beta: float
    situ_linear_beta: float

    num_nextn_predict_layers: int = 0

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> K3Config:
        """Read a ``config.json``: the multimodal wrapper's ``text_config`` or a bare ``kimi_linear`` config.

        Raises ``ValueError`` naming every missing field, or every field whose value this model cannot represent.
        """
        text = config.get("text_config") or config
        linear = text.get("linear_attn_config") or {}
        missing = [k for k in _REQUIRED if text.get(k) is None] + [
            f"linear_attn_config.{k}" for k in _REQUIRED_LINEAR if linear.get(k) is None
        ]
        if missing:
            raise ValueError(f"not a Kimi K3 text config: missing {', '.join(missing)}")
        if other := [*_other(text, _FIXED), *_other(linear, _FIXED_LINEAR, "linear_attn_config.")]:
            raise ValueError(f"a variant of Kimi K3 that this model cannot represent: {', '.join(other)}")
        return cls(
            vocab_size=text["vocab_size"],
            hidden_size=text["hidden_size"],
            num_hidden_layers=text["num_hidden_layers"],
            rms_norm_eps=text["rms_norm_eps"],
            attn_res_block_size=text["attn_res_block_size"],
            kda_layers=frozenset(i - 1 for i in linear["kda_layers"]),
            kda_num_heads=linear["num_heads"],
            kda_head_dim=linear["head_dim"],
            conv_width=linear["short_conv_kernel_size"],
            gate_lower_bound=linear.get("gate_lower_bound"),
            kda_norm_eps=linear.get("norm_eps", 1e-5),
            num_attention_heads=text["num_attention_heads"],
            q_lora_rank=text["q_lora_rank"],
            kv_lora_rank=text["kv_lora_rank"],
            qk_nope_head_dim=text["qk_nope_head_dim"],
            qk_rope_head_dim=text["qk_rope_head_dim"],
            v_head_dim=text["v_head_dim"],
            first_k_dense_replace=text["first_k_dense_replace"],
            intermediate_size=text["intermediate_size"],
            num_experts=text["num_experts"],
            num_experts_per_token=text["num_experts_per_token"],
            moe_intermediate_size=text["moe_intermediate_size"],
            routed_expert_hidden_size=text["routed_expert_hidden_size"],
            num_shared_experts=text["num_shared_experts"],
            moe_renormalize=text.get("moe_renormalize", True),
            routed_scaling_factor=text.get("routed_scaling_factor", 1.0),
            situ_beta=text["activation_situ_beta"],
            situ_linear_beta=text["activation_situ_linear_beta"],
            num_nextn_predict_layers=text.get("num_nextn_predict_layers", 0),
        )

    def to_hf(self) -> dict[str, Any]:
        """The ``config.json`` of this model, in the published wrapper's shape (vision tower: sizes only)."""
        text = {
            "model_type": "kimi_linear",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "rms_norm_eps": self.rms_norm_eps,
            "attn_res_block_size": self.attn_res_block_size,
            "linear_attn_config": {
                "kda_layers": sorted(i + 1 for i in self.kda_layers),
                "full_attn_layers": sorted(
                    i + 1 for i in range(self.num_hidden_layers) if i not in self.kda_layers
                ),
                "num_heads": self.kda_num_heads,
                "head_dim": self.kda_head_dim,
                "short_conv_kernel_size": self.conv_width,
                "gate_lower_bound": self.gate_lower_bound,
                "use_full_rank_gate": True,
            },
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_attention_heads,
            "q_lora_rank": self.q_lora_rank,
            "kv_lora_rank": self.kv_lora_rank,
            "qk_nope_head_dim": self.qk_nope_head_dim,
            "qk_rope_head_dim": self.qk_rope_head_dim,
            "v_head_dim": self.v_head_dim,
            "mla_use_nope": True,
            "mla_use_output_gate": True,
            "first_k_dense_replace": self.first_k_dense_replace,
            "moe_layer_freq": 1,
            "intermediate_size": self.intermediate_size,
            "num_experts": self.num_experts,
            "num_experts_per_token": self.num_experts_per_token,
            "moe_intermediate_size": self.moe_intermediate_size,
            "routed_expert_hidden_size": self.routed_expert_hidden_size,
            "latent_moe_use_norm": True,
            "num_shared_experts": self.num_shared_experts,
            "moe_renormalize": self.moe_renormalize,
            "moe_router_activation_func": "sigmoid",
            "topk_method": "noaux_tc",
            "use_grouped_topk": True,
            "num_expert_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": self.routed_scaling_factor,
            "hidden_act": "situ",
            "activation_situ_beta": self.situ_beta,
            "activation_situ_linear_beta": self.situ_linear_beta,
            "num_nextn_predict_layers": self.num_nextn_predict_layers,
            "tie_word_embeddings": False,
        }
        return {
            "architectures": ["KimiK3ForConditionalGeneration"],
            "model_type": "kimi_k3",
            "text_config": text,
        }

    @property
    def num_blocks(self) -> int:
        """Attention-residual blocks stored per token (8 at full size)."""
        return -(-self.num_hidden_layers // self.attn_res_block_size)

    @property
    def kda_size(self) -> int:
        """Channels of one KDA projection, all heads."""
        return self.kda_num_heads * self.kda_head_dim

    @property
    def qk_head_dim(self) -> int:
        """Query/key width of one MLA head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_dim(self) -> int:
        """Width of one MLA cache row: normalised latent and shared key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    def is_kda(self, layer: int) -> bool:
        """Whether the 0-based layer uses KDA (else MLA)."""
        return layer in self.kda_layers

    def is_moe(self, layer: int) -> bool:
        """Whether the 0-based layer has the LatentMoE block (else a dense MLP)."""
        return layer >= self.first_k_dense_replace


_REQUIRED = [
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "rms_norm_eps",
    "attn_res_block_size",
    "num_attention_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "first_k_dense_replace",
    "intermediate_size",
    "num_experts",
    "num_experts_per_token",
    "moe_intermediate_size",
    "routed_expert_hidden_size",
    "num_shared_experts",
    "activation_situ_beta",
    "activation_situ_linear_beta",
]
_FIXED = {
    "moe_layer_freq": 1,
    "moe_router_activation_func": "sigmoid",
    "num_expert_group": 1,
    "topk_group": 1,
    "hidden_act": "situ",
    "mla_use_nope": True,
    "mla_use_output_gate": True,
    "latent_moe_use_norm": True,
    "tie_word_embeddings": False,
    "logit_scale": 1.0,
}
"""What vLLM 0.33.0 reads and K3 has one value of; a config may leave it out."""
_FIXED_LINEAR = {"use_full_rank_gate": True}
_REQUIRED_LINEAR = ("kda_layers", "num_heads", "head_dim", "short_conv_kernel_size")


def _other(config: Mapping[str, Any], fixed: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Fields that say something else than ``fixed``."""
    for name, value in fixed.items():
        if config.get(name) is not None and config[name] != value:
            yield f"{prefix}{name} must be {value}, got {config[name]}"


def _interleaved_kda(num_layers: int, *, last_is_mla: bool) -> frozenset[int]:
    """Three KDA layers, then one MLA layer; K3 adds one more MLA layer at the end."""
    kda = {i for i in range(num_layers) if i % 4 != 3}
    return frozenset(kda - {num_layers - 1} if last_is_mla else kda)


FULL_SIZE = K3Config(
    vocab_size=163_840,
    hidden_size=7168,
    num_hidden_layers=93,
    rms_norm_eps=1e-5,
    attn_res_block_size=12,
    kda_layers=_interleaved_kda(93, last_is_mla=True),
    kda_num_heads=96,
    kda_head_dim=128,
    conv_width=4,
    gate_lower_bound=-5.0,
    kda_norm_eps=1e-5,
    num_attention_heads=96,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    first_k_dense_replace=1,
    intermediate_size=33_792,
    num_experts=896,
    num_experts_per_token=16,
    moe_intermediate_size=3072,
    routed_expert_hidden_size=3584,
    num_shared_experts=2,
    moe_renormalize=True,
    routed_scaling_factor=1.0,
    situ_beta=4.0,
    situ_linear_beta=25.0,
)
"""The published Kimi K3."""

TINY = K3Config(
    vocab_size=1024,
    hidden_size=256,
    num_hidden_layers=8,
    rms_norm_eps=1e-5,
    attn_res_block_size=4,
    kda_layers=_interleaved_kda(8, last_is_mla=False),
    kda_num_heads=4,
    kda_head_dim=32,
    conv_width=4,
    gate_lower_bound=-5.0,
    kda_norm_eps=1e-5,
    num_attention_heads=4,
    q_lora_rank=64,
    kv_lora_rank=64,
    qk_nope_head_dim=32,
    qk_rope_head_dim=16,
    v_head_dim=32,
    first_k_dense_replace=1,
    intermediate_size=512,
    num_experts=16,
    num_experts_per_token=4,
    moe_intermediate_size=64,
    routed_expert_hidden_size=128,
    num_shared_experts=1,
    moe_renormalize=True,
    routed_scaling_factor=1.0,
    situ_beta=4.0,
    situ_linear_beta=25.0,
    num_nextn_predict_layers=1,
)
"""The model behind profile ``cpu-tiny``: every mechanism of K3, three million parameters."""
