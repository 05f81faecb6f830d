"""vLLM's parameters as the weights of our operators: views where the layout is ours too, and reasons where it is not.

Nothing is packed twice. Only the 128 values of KDA's output norm are copied, to FP32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from runtime.kernels.attn_res.spec import check_weights as check_mix
from runtime.kernels.common.launch.arguments import check_tensor
from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.kda.spec import HEAD_SIZE, TAPS, KdaDecodeSpec
from runtime.kernels.kda.spec import check_weights as check_kda
from runtime.kernels.mla import shapes as mla
from runtime.kernels.mla.spec import check_weights as check_mla
from runtime.kernels.moe_experts.spec import MoeExpertsSpec
from runtime.kernels.moe_experts.spec import check_weights as check_experts
from runtime.model.providers.kda import KdaWeights
from runtime.model.providers.mix import MixKernel, MixSite
from runtime.model.providers.mla import MlaWeights
from runtime.model.providers.moe import MoeWeights
from runtime.model.step import Slot, SlotChoice

SITU = (4.0, 25.0)


def is_kda(attention: Any) -> bool:
    """Whether an attention module is K3's delta attention (an MLA layer has no packed in-projection)."""
    return hasattr(attention, "in_proj_qkvgfab")


def kda_weights(attention: Any) -> KdaWeights:
    """The weights of vLLM's ``KimiK3DeltaAttention``; see ``KdaWeights`` for shapes.

    Raises ``ValueError`` when a parameter does not have the shape, dtype or layout that our kernels read.
    """
    heads = attention.local_num_heads
    width = heads * HEAD_SIZE
    columns = 4 * width + HEAD_SIZE + heads + attention.in_proj_padding
    in_proj = _plain(attention.in_proj_qkvgfab, "in_proj_qkvgfab", (columns, attention.hidden_size))
    o_proj = _plain(attention.o_proj, "o_proj", (attention.hidden_size, width))
    f_b = _plain(attention.f_b_proj, "f_b_proj", (width, HEAD_SIZE))
    conv = attention.conv1d.weight.data
    check_tensor("conv1d", conv, shape=(3 * width, 1, TAPS), dtype=torch.float32, contiguous_from=0)
    found = KdaWeights(
        in_proj=in_proj,
        f_b=f_b,
        conv=conv.view(3 * width, TAPS),
        A_log=attention.A_log.data,
        dt_bias=attention.dt_bias.data.view(heads, HEAD_SIZE),
        norm=attention.o_norm.weight.data.float().contiguous(),
        o_proj=o_proj,
        lower_bound=float(attention.gate_lower_bound),
        eps=float(attention.o_norm.eps),
    )
    spec = KdaDecodeSpec(heads, 1, found.lower_bound, found.eps)
    check_kda(spec, f_b, found.conv, found.A_log, found.dt_bias, found.norm)
    return found


def mla_weights(attention: Any) -> MlaWeights:
    """The weights of vLLM's ``MultiHeadLatentAttention``; see ``MlaWeights`` for shapes.

    Raises ``ValueError`` with the reasons when it is another attention than our kernels compute, or when a parameter
    does not have the shape, dtype or layout that they read.
    """
    if reasons := [reason for failed, reason in _mla_checks(attention) if failed]:
        raise ValueError("MLA with " + ", ".join(reasons))
    heads, rank, hidden = attention.num_local_heads, attention.q_lora_rank, attention.hidden_size
    columns = rank + mla.ROW + heads * mla.VALUE
    kv_b = _plain(attention.kv_b_proj, "kv_b_proj", (heads * (mla.NOPE + mla.VALUE), mla.LATENT))
    w_uk, w_uv = kv_b.view(heads, -1, mla.LATENT).split([mla.NOPE, mla.VALUE], dim=1)
    found = MlaWeights(
        in_proj=_plain(attention.fused_qkv_a_g_proj, "fused_qkv_a_g_proj", (columns, hidden)),
        q_norm=attention.q_a_layernorm.weight.data,
        w_qb=_plain(attention.q_b_proj, "q_b_proj", (heads * mla.HEAD, rank)),
        kv_norm=attention.kv_a_layernorm.weight.data,
        w_uk=w_uk,
        w_uv=w_uv,
        o_proj=_plain(attention.o_proj, "o_proj", (hidden, heads * mla.VALUE)),
        scale=float(attention.scale),
        eps=float(attention.rms_norm_eps),
    )
    parts = (found.q_norm, found.w_qb, found.kv_norm, found.w_uk, found.w_uv)
    check_mla(found.spec(1, Overlap()), *parts)
    return found


def readable_mla(attention: Any) -> MlaWeights | None:
    """The same, or None for what is no MLA layer or cannot be read; ``problems`` has the reasons."""
    try:
        return None if is_kda(attention) else mla_weights(attention)
    except (ValueError, AttributeError):
        return None


def _mla_checks(attention: Any) -> tuple[tuple[bool, str], ...]:
    sizes = (
        attention.kv_lora_rank,
        attention.qk_rope_head_dim,
        attention.qk_nope_head_dim,
        attention.v_head_dim,
    )
    return (
        (attention.q_lora_rank is None, "a full-rank query"),
        (not attention.use_output_gate, "no output gate"),
        (attention.rotary_emb is not None, "rotary positions"),
        (attention.kv_cache_dtype not in ("auto", "bfloat16"), f"a {attention.kv_cache_dtype} cache"),
        (attention.dcp_world_size > 1, "a context shared out over ranks"),
        (attention.non_causal_multi_token_decode, "verify rows that see each other"),
        (sizes != (mla.LATENT, mla.KEY, mla.NOPE, mla.VALUE), f"sizes {sizes}"),
    )


def _plain(linear: Any, name: str, shape: tuple[int, int]) -> Tensor:
    """The weight of an unquantized linear layer, [out, in] BF16, without bias."""
    if getattr(linear, "bias", None) is not None:
        raise ValueError(f"{name} has a bias")
    weight: Tensor = linear.weight.data
    check_tensor(name, weight, shape=shape, dtype=torch.bfloat16, contiguous_from=0)
    return weight


def is_moe(feed_forward: Any) -> bool:
    """Whether a feed-forward module is K3's LatentMoE with a shared expert."""
    return getattr(feed_forward, "shared_experts", None) is not None


def moe_weights(moe: Any) -> MoeWeights:
    """The weights of vLLM's ``KimiMoE``; see ``MoeWeights`` for shapes.

    Raises ``ValueError`` when a parameter does not have the shape, dtype or layout that our kernels read.
    """
    hidden, experts = moe.gate.weight.shape[1], moe.gate.weight.shape[0]
    latent = moe.routed_expert_down_proj.weight.shape[0]
    inner = moe.shared_experts.down_proj.weight.shape[1]
    routed = moe.experts.routed_experts
    found = tuple(
        getattr(routed, name).data
        for name in ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")
    )
    width = found[1].shape[-1] // 2  # [E, K/32, 2 I] in Humming's layout
    activation = moe.shared_experts.act_fn
    spec = MoeExpertsSpec(
        latent,
        width,
        experts,
        moe.experts.moe_config.experts_per_token,
        activation.beta,
        activation.linear_beta or 0.0,
    )
    if (spec.beta, spec.linear_beta) != SITU:
        raise ValueError(
            f"SiTU {spec.beta}/{spec.linear_beta}: the shared expert's kernel knows {SITU[0]}/{SITU[1]}"
        )
    check_experts(spec, *found)
    if (
        moe.num_expert_group != 1
        or moe.moe_router_activation_func != "sigmoid"
        or moe.routed_expert_norm is None
    ):
        raise ValueError("a router of several groups, or not sigmoid, or a latent without norm")
    return MoeWeights(
        router=_plain(moe.gate, "gate", (experts, hidden)),
        bias=moe.gate.e_score_correction_bias.data,
        shared_gate_up=_plain(moe.shared_experts.gate_up_proj, "gate_up_proj", (2 * inner, hidden)),
        shared_down=_plain(moe.shared_experts.down_proj, "down_proj", (hidden, inner)),
        down=_plain(moe.routed_expert_down_proj, "routed_expert_down_proj", (latent, hidden)),
        up=_plain(moe.routed_expert_up_proj, "routed_expert_up_proj", (hidden, latent)),
        experts=found,
        spec=spec,
        renormalize=bool(moe.moe_renormalize),
        scaling=float(moe.routed_scaling_factor),
        norm=moe.routed_expert_norm,
    )


def mix_before_attention(layer: Any, *, first: bool) -> MixSite:
    """The site before attention of vLLM's ``KimiDecoderLayer``; ``first`` of its pipeline stage has no delta yet."""
    return _site(
        layer.layer_idx,
        layer.prev_valid_blocks,
        layer.block_write_idx if layer.is_block_write_layer else None,
        not first,
        layer.self_attention_res_norm,
        layer.self_attention_res_proj,
        layer.input_layernorm,
    )


def mix_before_feed_forward(layer: Any) -> MixSite:
    """The site after attention: in a layer that starts a block the attention output is the prefix, not a delta."""
    return _site(
        layer.layer_idx,
        layer.prev_valid_blocks + layer.is_block_write_layer,
        None,
        not layer.is_block_write_layer,
        layer.mlp_res_norm,
        layer.mlp_res_proj,
        layer.post_attention_layernorm,
    )


def last_mix(backbone: Any) -> MixSite:
    """The mixture after the last layer of the last stage; vLLM applies the final norm with the logits."""
    norm, proj = backbone.output_attn_res_norm, backbone.output_attn_res_proj
    return _site(None, backbone.num_attn_res_blocks, None, True, norm, proj, None)


def _site(
    layer: int | None,
    blocks: int,
    write: int | None,
    has_delta: bool,
    norm: Any,
    proj: Any,
    out_norm: Any | None,
) -> MixSite:
    return MixSite(
        layer=layer,
        num_blocks=blocks,
        write=write,
        has_delta=has_delta,
        score_norm=norm.weight.data,
        score_vec=proj.weight.data.squeeze(0),
        out_norm=None if out_norm is None else out_norm.weight.data,
        eps=float(norm.variance_epsilon),
        out_eps=0.0 if out_norm is None else float(out_norm.variance_epsilon),
    )


def check_site(site: MixSite) -> None:
    """Raise ``ValueError`` unless the weights of a site are what our kernel reads."""
    check_mix(MixKernel.spec(site, Overlap()), site.score_norm, site.score_vec, site.out_norm)


def problems(backbone: Any, slots: SlotChoice) -> list[str]:
    """Every reason why the loaded weights of vLLM's ``KimiLinearModel`` cannot be read in place, each once.

    slots: only what they take is read.
    """
    found: dict[str, int] = {}
    layers = list(backbone.layers[backbone.start_layer : backbone.end_layer])
    for layer in layers:
        try:
            if is_kda(layer.self_attn):
                kda_weights(layer.self_attn)
            elif slots.ours(Slot.ATTEND_MLA, layer.layer_idx):
                mla_weights(layer.self_attn)
            check_site(mix_before_attention(layer, first=layer is layers[0]))
            check_site(mix_before_feed_forward(layer))
            if is_moe(layer.mlp) and slots.ours(Slot.FEED_FORWARD, layer.layer_idx):
                moe_weights(layer.mlp)
        except (ValueError, AttributeError) as error:
            found.setdefault(str(error), layer.layer_idx)
    return [f"layer {index}: {reason}" for reason, index in found.items()]
