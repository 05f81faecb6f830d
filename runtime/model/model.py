"""The whole model: decoder (shared with the engine), and a full-sequence reference with explicit state."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from runtime.kernels.attn_res.reference import attn_res
from runtime.kernels.common.maths.norms import rms_norm
from runtime.model import step
from runtime.model.config import K3Config
from runtime.model.layers import (
    DecoderLayer,
    DenseMlp,
    KdaInputs,
    KdaLayer,
    LatentMoe,
    MlaInputs,
    MlaLayer,
)
from runtime.model.mixing import KdaState, empty_kda_state, kda_sequence, mla_sequence
from runtime.model.providers.reference import AttentionMixer, attend, slots
from runtime.model.sharding import Shard, Weight
from runtime.model.step import Residual


class Decoder(nn.Module):
    """All layers and the final mixture; embedding and head belong to whoever owns the vocabulary."""

    def __init__(self, config: K3Config, shard: Shard) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(DecoderLayer(config, i, shard) for i in range(config.num_hidden_layers))
        self.norm = Weight(config.hidden_size)
        self.output_attn_res_norm, self.output_attn_res_proj = (
            Weight(config.hidden_size),
            Weight(1, config.hidden_size),
        )

    def forward(self, x: Tensor, mixer: AttentionMixer) -> Tensor:
        """Embeddings x [T,D] → the final mixture [T,D], before ``norm``."""
        blocks = x.new_zeros(x.shape[0], self.config.num_blocks, x.shape[1])
        residual = step.run((slots(layer, mixer) for layer in self.layers), Residual(x, None, blocks))
        return attn_res(
            residual.prefix,
            residual.delta,
            residual.blocks,
            num_blocks=self.config.num_blocks,
            write=None,
            score_norm=self.output_attn_res_norm.weight,
            score_vec=self.output_attn_res_proj.weight[0],
            eps=self.config.rms_norm_eps,
            out_norm=None,
            out_eps=self.config.rms_norm_eps,
        ).out

    def normalize(self, h: Tensor) -> Tensor:
        """The head's input: RMSNorm of the final mixture."""
        return rms_norm(h, self.norm.weight, self.config.rms_norm_eps)


class MtpLayer(nn.Module):
    """Multi-token-prediction head: one ordinary pre-norm layer (no attention residuals) over [embedding, hidden].

    Names sit directly under ``model.layers.<num_hidden_layers + i>``, as in the published MTP checkpoints of this
    family. Position 0 has no predecessor: its embedding is zeroed.
    """

    def __init__(self, config: K3Config, index: int, shard: Shard) -> None:
        super().__init__()
        self.config, self.index = config, index
        hidden = config.hidden_size
        self.enorm, self.hnorm, self.eh_proj = Weight(hidden), Weight(hidden), Weight(hidden, 2 * hidden)
        self.self_attn: KdaLayer | MlaLayer = (KdaLayer if config.is_kda(index) else MlaLayer)(config, shard)
        if config.is_moe(index):
            self.block_sparse_moe = LatentMoe(config, shard)
        else:
            self.mlp = DenseMlp(config, config.intermediate_size, shard)
        self.input_layernorm, self.post_attention_layernorm = Weight(hidden), Weight(hidden)

    def forward(self, embedding: Tensor, hidden: Tensor, positions: Tensor, mixer: AttentionMixer) -> Tensor:
        """embedding [T,D] of the next token, hidden [T,D] of the target → [T,D] before the head norm."""
        eps = self.config.rms_norm_eps
        embedding = embedding.masked_fill((positions == 0)[:, None], 0.0)
        joined = [rms_norm(embedding, self.enorm.weight, eps), rms_norm(hidden, self.hnorm.weight, eps)]
        x = self.eh_proj(torch.cat(joined, -1))
        x = x + attend(self.index, self.self_attn, mixer, rms_norm(x, self.input_layernorm.weight, eps))
        block = self.block_sparse_moe if self.config.is_moe(self.index) else self.mlp
        result: Tensor = x + block(rms_norm(x, self.post_attention_layernorm.weight, eps))
        return result


@dataclass(frozen=True)
class SequenceState:
    """Everything one sequence carries between calls: KDA states and MLA cache rows [S,L+dr] by layer."""

    length: int = 0
    kda: dict[int, KdaState] = field(default_factory=dict)
    latents: dict[int, Tensor] = field(default_factory=dict)


class _SequenceMixer:
    """Mixes one sequence, collecting its next state."""

    def __init__(self, state: SequenceState, tokens: int) -> None:
        self.state = state
        self.positions = torch.arange(state.length, state.length + tokens)
        self.next = SequenceState(state.length + tokens, dict(state.kda), dict(state.latents))

    def kda(self, index: int, layer: KdaLayer, inputs: KdaInputs) -> Tensor:
        state = self.state.kda.get(index) or empty_kda_state(layer, inputs.qkv.dtype)
        o, self.next.kda[index] = kda_sequence(layer, inputs, state)
        return o

    def mla(self, index: int, layer: MlaLayer, inputs: MlaInputs) -> Tensor:
        before = self.state.latents.get(index)
        cache = inputs.latent if before is None else torch.cat([before, inputs.latent])
        self.next.latents[index] = cache
        return mla_sequence(layer, inputs.q, cache, self.positions)


class K3Model(nn.Module):
    """Reference: one sequence at a time, explicit state in and out, no engine. The definition engines are held to."""

    def __init__(self, config: K3Config) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config, Shard())
        self.model.embed_tokens = Weight(config.vocab_size, config.hidden_size)
        self.lm_head = Weight(config.vocab_size, config.hidden_size)

    @torch.no_grad()
    def forward(self, ids: Tensor, state: SequenceState | None = None) -> tuple[Tensor, SequenceState]:
        """Token ids [T] and the state before them → logits [T,vocab] and the state after them."""
        mixer = _SequenceMixer(state or SequenceState(), ids.shape[0])
        h = self.model(self.model.embed_tokens.weight[ids], mixer)
        logits: Tensor = self.lm_head(self.model.normalize(h))
        return logits, mixer.next

    @torch.no_grad()
    def greedy(self, prompt: list[int], tokens: int) -> list[int]:
        """Greedy continuation of ``prompt``, token by token."""
        logits, state = self(torch.tensor(prompt))
        out = [int(logits[-1].argmax())]
        while len(out) < tokens:
            logits, state = self(torch.tensor(out[-1:]), state)
            out.append(int(logits[-1].argmax()))
        return out
