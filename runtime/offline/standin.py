"""Configurations with Kimi K3's published sizes, for checks that need a model's shape but not its weights."""

from __future__ import annotations

from typing import Any

LAYERS = 93
MLA_LAYERS = [*range(4, 93, 4), 93]
"""1-based, as the checkpoint's config lists them."""


def model_config() -> dict[str, Any]:
    """``config.json`` of a full-size Kimi K3 (text sizes; the vision tower keeps its defaults)."""
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "text_config": _text_config(),
        "vision_config": {"model_type": "kimi_k3_vision"},
        "torch_dtype": "bfloat16",
    }


def _text_config() -> dict[str, Any]:
    return {
        "model_type": "kimi_linear",
        "vocab_size": 163_840,
        "hidden_size": 7168,
        "head_dim": 128,
        "intermediate_size": 33_792,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 96,
        "num_key_value_heads": 96,
        "hidden_act": "situ",
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "rms_norm_eps": 1e-5,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "moe_intermediate_size": 3072,
        "routed_expert_hidden_size": 3584,
        "latent_moe_use_norm": True,
        "num_experts": 896,
        "num_experts_per_token": 16,
        "num_expert_group": 1,
        "topk_group": 1,
        "num_shared_experts": 2,
        "moe_router_activation_func": "sigmoid",
        "first_k_dense_replace": 1,
        "attn_res_block_size": 12,
        "max_position_embeddings": 1_048_576,
        "linear_attn_config": {
            "kda_layers": [layer for layer in range(1, LAYERS + 1) if layer not in MLA_LAYERS],
            "full_attn_layers": MLA_LAYERS,
            "num_heads": 96,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "use_full_rank_gate": True,
            "gate_lower_bound": -5.0,
        },
        "torch_dtype": "bfloat16",
    }


def drafter_config() -> dict[str, Any]:
    """``config.json`` of an MLA DSpark drafter; its layer count is an assumption."""
    return {
        "architectures": ["K3DSparkModel"],
        "model_type": "k3_dspark",
        "vocab_size": 163_840,
        "hidden_size": 7168,
        "intermediate_size": 18_432,
        "num_hidden_layers": 5,
        "num_attention_heads": 96,
        "num_key_value_heads": 96,
        "hidden_act": "silu",
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "max_position_embeddings": 1_048_576,
        "block_size": 8,
        "mask_token_id": 1,
        "target_layer_ids": [11, 23, 35, 47, 59],
        "num_target_layers": 5,
        "torch_dtype": "bfloat16",
    }
