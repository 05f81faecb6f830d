"""K3's layers as modules with the checkpoint's names. State is explicit: projections in, mixed values out.

Attention layers are split in three so that one implementation serves a full-sequence reference, a paged engine and
a fused kernel: ``project`` (before the state), a mixing function (touches the state), ``output`` (after it). The
mixing lives in ``mixing.py`` and in the engine's executors; ``providers.reference`` puts them into a step's slots.

Shapes: T tokens, D hidden, H local KDA heads, K = V KDA head dim, N local MLA heads, L latent, C = 3·H·K.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from runtime.kernels.attn_res.reference import attn_res
from runtime.kernels.common.maths.norms import rms_norm
from runtime.kernels.kda.reference import bounded_gate, gated_norm
from runtime.kernels.latent_moe.reference import experts, gated_mlp, route
from runtime.model.config import K3Config
from runtime.model.sharding import HeadVector, Shard, Weight
from runtime.model.step import Residual


@dataclass(frozen=True)
class KdaInputs:
    """What KDA needs of each token before its state: qkv [T,C] raw conv inputs, log_decay [T,H,K] FP32,
    beta [T,H] FP32, gate [T,H,K] (logits of the output gate).
    """

    qkv: Tensor
    log_decay: Tensor
    beta: Tensor
    gate: Tensor


@dataclass(frozen=True)
class MlaInputs:
    """What MLA needs of each token before its cache: q [T,N,dn+dr], latent [T,L+dr] (the cache row), gate [T,N·dv]."""

    q: Tensor
    latent: Tensor
    gate: Tensor


class KdaLayer(nn.Module):
    """Kimi Delta Attention: projections, bounded forget gate, gated output norm."""

    def __init__(self, config: K3Config, shard: Shard) -> None:
        super().__init__()
        self.config, self.shard = config, shard
        hidden, size, dim = config.hidden_size, config.kda_size, config.kda_head_dim
        self.heads = shard.local(config.kda_num_heads, "KDA heads")
        self.q_proj, self.k_proj, self.v_proj, self.g_proj = (
            Weight(size, hidden, shard=shard) for _ in range(4)
        )
        self.f_a_proj, self.f_b_proj = Weight(dim, hidden), Weight(size, dim, shard=shard)
        self.b_proj = Weight(config.kda_num_heads, hidden, shard=shard)
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (
            Weight(size, config.conv_width, shard=shard, dtype=torch.float32) for _ in range(3)
        )
        self.A_log = HeadVector(config.kda_num_heads, shard=shard, dtype=torch.float32)
        self.dt_bias = HeadVector(size, shard=shard, dtype=torch.float32)
        self.o_norm = Weight(dim)
        self.o_proj = Weight(hidden, size, shard=shard, dim=1)

    @property
    def channels(self) -> int:
        """Local conv channels C of q, k and v together."""
        return 3 * self.heads * self.config.kda_head_dim

    def conv_weight(self) -> Tensor:
        """Taps of q, k and v, [C, W] FP32; tap 0 meets the oldest input."""
        return torch.cat([self.q_conv1d.weight, self.k_conv1d.weight, self.v_conv1d.weight])

    def project(self, x: Tensor) -> KdaInputs:
        """x [T,D] → the inputs of the recurrence. Rounds qkv, raw gate and gate logits to x.dtype."""
        by_head = (x.shape[0], self.heads, self.config.kda_head_dim)
        raw = self.f_b_proj(self.f_a_proj(x)).view(by_head)
        log_decay = bounded_gate(
            raw, self.A_log.weight, self.dt_bias.weight.view(by_head[1:]), self.config.gate_lower_bound
        )
        return KdaInputs(
            qkv=torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1),
            log_decay=log_decay,
            beta=self.b_proj(x).float().sigmoid(),
            gate=self.g_proj(x).view(by_head),
        )

    def output(self, o: Tensor, gate: Tensor) -> Tensor:
        """o [T,H,V] FP32, gate [T,H,V] → [T,D], summed over the group. Rounds to gate.dtype before ``o_proj``."""
        y = gated_norm(o, self.o_norm.weight, gate, self.config.kda_norm_eps)
        return self.shard.all_reduce(self.o_proj(y.to(gate.dtype).flatten(1)))


class MlaLayer(nn.Module):
    """NoPE multi-head latent attention with an output gate."""

    def __init__(self, config: K3Config, shard: Shard) -> None:
        super().__init__()
        self.config, self.shard = config, shard
        hidden, total, c = config.hidden_size, config.num_attention_heads, config
        self.heads = shard.local(total, "MLA heads")
        self.q_a_proj, self.q_a_layernorm = Weight(c.q_lora_rank, hidden), Weight(c.q_lora_rank)
        self.q_b_proj = Weight(total * c.qk_head_dim, c.q_lora_rank, shard=shard)
        self.kv_a_proj_with_mqa, self.kv_a_layernorm = Weight(c.latent_dim, hidden), Weight(c.kv_lora_rank)
        self.kv_b_proj = Weight(total * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank, shard=shard)
        self.g_proj = Weight(total * c.v_head_dim, hidden, shard=shard)
        self.o_proj = Weight(hidden, total * c.v_head_dim, shard=shard, dim=1)

    @property
    def scale(self) -> float:
        """Softmax scale."""
        return float(self.config.qk_head_dim**-0.5)

    def up_projections(self) -> tuple[Tensor, Tensor]:
        """W_UK [N,dn,L] and W_UV [N,dv,L], views of ``kv_b_proj``."""
        c = self.config
        w = self.kv_b_proj.weight.view(self.heads, c.qk_nope_head_dim + c.v_head_dim, c.kv_lora_rank)
        return w[:, : c.qk_nope_head_dim], w[:, c.qk_nope_head_dim :]

    def project(self, x: Tensor) -> MlaInputs:
        """x [T,D] → queries, cache rows and gate logits, each rounded to x.dtype."""
        c = self.config
        q = self.q_b_proj(rms_norm(self.q_a_proj(x), self.q_a_layernorm.weight, c.rms_norm_eps))
        kv = self.kv_a_proj_with_mqa(x)
        latent, shared_key = kv.split([c.kv_lora_rank, c.qk_rope_head_dim], -1)
        latent = rms_norm(latent, self.kv_a_layernorm.weight, c.rms_norm_eps)
        return MlaInputs(
            q=q.view(-1, self.heads, c.qk_head_dim),
            latent=torch.cat([latent, shared_key], -1),
            gate=self.g_proj(x),
        )

    def output(self, o: Tensor, gate: Tensor) -> Tensor:
        """o [T,N,dv], gate [T,N·dv] → [T,D], summed over the group."""
        gated = (o.flatten(1).float() * gate.float().sigmoid()).to(gate.dtype)
        return self.shard.all_reduce(self.o_proj(gated))


class DenseMlp(nn.Module):
    """SiTU MLP; also the shared expert of a MoE block."""

    def __init__(self, config: K3Config, intermediate: int, shard: Shard) -> None:
        super().__init__()
        self.config, self.shard = config, shard
        self.gate_proj = Weight(intermediate, config.hidden_size, shard=shard)
        self.up_proj = Weight(intermediate, config.hidden_size, shard=shard)
        self.down_proj = Weight(config.hidden_size, intermediate, shard=shard, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """x [T,D] → [T,D], summed over the group."""
        y = gated_mlp(
            x,
            self.gate_proj.weight,
            self.up_proj.weight,
            self.down_proj.weight,
            self.config.situ_beta,
            self.config.situ_linear_beta,
        )
        return self.shard.all_reduce(y)


class Experts(nn.Module):
    """Routed experts stacked: w1 (gate) and w3 (up) [E,I,R], w2 (down) [E,R,I]; I split over the group."""

    def __init__(self, config: K3Config, shard: Shard) -> None:
        super().__init__()
        self.shard = shard
        count, latent = config.num_experts, config.routed_expert_hidden_size
        inner = shard.local(config.moe_intermediate_size, "expert intermediate size")
        self.w1, self.w3 = (
            nn.Parameter(torch.empty(count, inner, latent), requires_grad=False) for _ in range(2)
        )
        self.w2 = nn.Parameter(torch.empty(count, latent, inner), requires_grad=False)

    def load(self, which: str, expert: int, full: Tensor) -> None:
        """Take this rank's slice of one expert's ``w1``, ``w2`` or ``w3``."""
        target: Tensor = getattr(self, which).data[expert]
        dim = 1 if which == "w2" else 0
        extent = target.shape[dim]
        target.copy_(full.narrow(dim, self.shard.rank * extent, extent))


class LatentMoe(nn.Module):
    """Router on the hidden state, experts on a projected latent, shared expert beside them."""

    def __init__(self, config: K3Config, shard: Shard) -> None:
        super().__init__()
        self.config, self.shard = config, shard
        hidden, latent = config.hidden_size, config.routed_expert_hidden_size
        self.gate = Weight(config.num_experts, hidden)
        self.gate.e_score_correction_bias = nn.Parameter(
            torch.empty(config.num_experts, dtype=torch.float32), requires_grad=False
        )
        self.experts = Experts(config, shard)
        self.routed_expert_down_proj, self.routed_expert_up_proj = (
            Weight(latent, hidden),
            Weight(hidden, latent),
        )
        self.routed_expert_norm = Weight(latent)
        self.shared_experts = DenseMlp(
            config, config.moe_intermediate_size * config.num_shared_experts, shard
        )

    def forward(self, x: Tensor) -> Tensor:
        """x [T,D] → [T,D]. The latent sum is reduced over the group before its norm."""
        c = self.config
        weights, ids = route(
            x.float() @ self.gate.weight.float().T,
            self.gate.e_score_correction_bias,
            c.num_experts_per_token,
            c.moe_renormalize,
            c.routed_scaling_factor,
        )
        latent = experts(
            self.routed_expert_down_proj(x),
            weights,
            ids,
            self.experts.w1,
            self.experts.w3,
            self.experts.w2,
            c.situ_beta,
            c.situ_linear_beta,
        )
        latent = rms_norm(self.shard.all_reduce(latent), self.routed_expert_norm.weight, c.rms_norm_eps)
        return self.routed_expert_up_proj(latent) + self.shared_experts(x)


class DecoderLayer(nn.Module):
    """One K3 layer: two attention-residual mixtures around attention and MLP."""

    def __init__(self, config: K3Config, index: int, shard: Shard) -> None:
        super().__init__()
        self.config, self.index = config, index
        hidden = config.hidden_size
        self.self_attn: KdaLayer | MlaLayer = (KdaLayer if config.is_kda(index) else MlaLayer)(config, shard)
        if config.is_moe(index):
            self.block_sparse_moe = LatentMoe(config, shard)
        else:
            self.mlp = DenseMlp(config, config.intermediate_size, shard)
        self.input_layernorm, self.post_attention_layernorm = Weight(hidden), Weight(hidden)
        self.self_attention_res_norm, self.mlp_res_norm = Weight(hidden), Weight(hidden)
        self.self_attention_res_proj, self.mlp_res_proj = Weight(1, hidden), Weight(1, hidden)
        self.write = index // config.attn_res_block_size if index % config.attn_res_block_size == 0 else None
        self.blocks_before = -(-index // config.attn_res_block_size)

    @property
    def feed_forward(self) -> nn.Module:
        """The MLP or MoE block."""
        block: nn.Module = self.block_sparse_moe if self.config.is_moe(self.index) else self.mlp
        return block

    def before_attention(self, residual: Residual) -> tuple[Tensor, Residual]:
        """Mix the sources, start a block where this layer starts one; returns the attention input [T,D]."""
        mixed = attn_res(
            residual.prefix,
            residual.delta,
            residual.blocks,
            num_blocks=self.blocks_before,
            write=self.write,
            score_norm=self.self_attention_res_norm.weight,
            score_vec=self.self_attention_res_proj.weight[0],
            eps=self.config.rms_norm_eps,
            out_norm=self.input_layernorm.weight,
            out_eps=self.config.rms_norm_eps,
        )
        return mixed.out, Residual(mixed.prefix, None, mixed.blocks)

    def before_feed_forward(self, residual: Residual) -> tuple[Tensor, Residual]:
        """Mix again, after the attention output was taken; returns the MLP input [T,D]."""
        mixed = attn_res(
            residual.prefix,
            residual.delta,
            residual.blocks,
            num_blocks=self.blocks_before + (self.write is not None),
            write=None,
            score_norm=self.mlp_res_norm.weight,
            score_vec=self.mlp_res_proj.weight[0],
            eps=self.config.rms_norm_eps,
            out_norm=self.post_attention_layernorm.weight,
            out_eps=self.config.rms_norm_eps,
        )
        return mixed.out, Residual(mixed.prefix, None, mixed.blocks)
