"""Kimi K3 at the shapes of one rank of TP8, for one GPU: a config, and a load format that makes its weights there.

Load format ``k3_rank`` fills the parameters of vLLM's own model on the GPU: Gaussian BF16 of a real scale, random
MXFP4 codes, and *damped* outputs (attention, MLP and MoE add little to the residual stream), so that greedy tokens
depend on rounding only at near-ties. vLLM's ``dummy`` leaves some private copies unset and all else tiny.

A rank-local model at tensor_parallel_size=1 would take vLLM's single-GPU branches; ``take_tp8_branches`` makes it
take those of a rank (KDA's projection overlap, the latent MoE tail with its reductions, which are no-ops here).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

LOAD_FORMAT = "k3_rank"
DAMPING = 0.05
DAMPED = ("o_proj", "down_proj", "routed_expert_up_proj")


def write_config(folder: Path, layers: int, block: int, tp: int = 8) -> Path:
    """Write ``config.json`` of ``layers`` layers with attention-residual blocks of ``block``; returns the folder."""
    mla = [i for i in range(1, layers + 1) if i % 4 == 0 or i == layers]
    config: dict[str, Any] = {
        "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "vocab_size": 163840 // tp,
        "hidden_size": 7168, "intermediate_size": 33792 // tp, "num_hidden_layers": layers,
        "num_attention_heads": 96 // tp, "num_key_value_heads": 96 // tp, "hidden_act": "situ",
        "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "rms_norm_eps": 1e-5, "num_experts": 896,
        "num_experts_per_token": 16, "num_shared_experts": 2, "moe_intermediate_size": 3072 // tp,
        "routed_expert_hidden_size": 3584, "latent_moe_use_norm": True, "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid", "routed_scaling_factor": 1.0, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "use_grouped_topk": True, "num_expert_group": 1, "topk_group": 1,
        "topk_method": "noaux_tc", "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": True, "mla_use_output_gate": True,
        "linear_attn_config": {
            "kda_layers": [i for i in range(1, layers + 1) if i not in mla], "full_attn_layers": mla,
            "num_heads": 96 // tp, "head_dim": 128, "short_conv_kernel_size": 4, "use_full_rank_gate": True,
            "gate_lower_bound": -5.0,
        },
        "attn_res_block_size": block, "num_nextn_predict_layers": 0, "max_position_embeddings": 1048576,
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "mxfp4"},
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    return folder


def register() -> None:
    """Make ``--load-format k3_rank`` known to vLLM in this process."""
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER, register_model_loader
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    if LOAD_FORMAT in _LOAD_FORMAT_TO_MODEL_LOADER:
        return

    class RankLoader(DummyModelLoader):
        """Fills what ``dummy`` would fill, with values that a model could have."""

        def create_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
            if vllm_config.parallel_config.tensor_parallel_size == 1:
                take_tp8_branches()
            return super().create_model(vllm_config, model_config, prefix)

        def load_weights(self, model: Any, model_config: Any) -> None:
            super().load_weights(model, model_config)
            randomize(model)
            widen_projection_overlap(model)

    register_model_loader(LOAD_FORMAT)(RankLoader)


def take_tp8_branches() -> None:
    """Let a single GPU take the branches of a rank of TP8 that vLLM chooses by the group's size."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.models.kimi_k3.nvidia import low_latency_gemm
    from vllm.models.kimi_k3.nvidia.latent_moe_runner import LatentMoERunner

    low_latency_gemm._KDA_TP_SIZE = 1

    def use_fused_path(self: Any) -> bool:
        transform = self.routed_output_transform
        return (
            self._shared_experts is not None
            and not self._fused_output_is_reduced
            and not self.moe_config.is_sequence_parallel
            and transform is not None
            and isinstance(transform.up_proj.quant_method, UnquantizedLinearMethod)
        )

    LatentMoERunner._use_fused_path = use_fused_path


def widen_projection_overlap(model: Any) -> None:
    """What vLLM does at the end of FlashInfer's autotuning: allow KDA's projection overlap up to 14 tokens."""
    from vllm.models.kimi_k3.nvidia import low_latency_gemm

    low_latency_gemm.autotune_kda_qkvg(model)


def randomize(model: Any, seed: int = 1) -> None:
    """Random values in place, on the parameters' own device."""
    import torch

    generator = torch.Generator(device=next(model.parameters()).device).manual_seed(seed)
    seen: set[int] = set()
    for name, parameter in list(model.named_parameters()):
        t = parameter.data
        if t.data_ptr() in seen or t.device.type == "meta":
            continue
        seen.add(t.data_ptr())
        _fill(name, t, generator)
    for module in model.modules():  # copies that the native decode kernel keeps for itself
        copy = getattr(module, "decode_conv1d_weight", None)
        if copy is not None:
            taps = module.conv1d.weight.data.view(3, copy.shape[2], copy.shape[1])
            copy.copy_(taps.transpose(1, 2))
        copy = getattr(module, "decode_norm_weight", None)
        if copy is not None:
            copy.copy_(module.o_norm.weight.data)


def _fill(name: str, t: Any, generator: Any) -> None:
    import torch

    leaf = name.rsplit(".", 1)[-1]
    if t.dtype == torch.uint8:
        if "scale" in leaf:
            t.fill_(120)  # E8M0: 2^-7, a weight of about 0.02
        else:
            t.random_(0, 256, generator=generator)
    elif leaf == "A_log":
        t.uniform_(0.0, math.log(16.0), generator=generator)
    elif leaf == "dt_bias":
        t.uniform_(-4.0, 0.0, generator=generator)
    elif leaf == "e_score_correction_bias":
        t.normal_(0.0, 0.01, generator=generator)
    elif not t.is_floating_point():
        return
    elif "norm" in name and t.dim() == 1:
        t.normal_(1.0, 0.1, generator=generator)
    elif "conv1d" in name:
        t.normal_(0.0, 0.5, generator=generator)
    elif "embed_tokens" in name:
        t.normal_(0.0, 1.0, generator=generator)
    elif t.dim() >= 2:
        scale = DAMPING if any(part in name for part in DAMPED) else 1.0
        t.normal_(0.0, scale / math.sqrt(t.shape[-1]), generator=generator)
