"""K3's multi-token-prediction drafter as a vLLM model class (``KimiK3MTPModel``, method ``mtp``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

from runtime.engine.cpu.executor import NullMixer, StandardMixer
from runtime.engine.cpu.model import attention_cache, step_rows
from runtime.engine.cpu.setup import tensor_parallel_shard
from runtime.kernels.common.maths.norms import rms_norm
from runtime.model.config import K3Config
from runtime.model.model import MtpLayer
from runtime.model.sharding import Weight
from runtime.model.weights import load_module, missing_weights


class _SharedHead(nn.Module):
    def __init__(self, config: K3Config, prefix: str) -> None:
        super().__init__()
        self.norm = Weight(config.hidden_size)
        self.head = ParallelLMHead(config.vocab_size, config.hidden_size, prefix=f"{prefix}.shared_head.head")


class K3Mtp(nn.Module):
    """Drafts one token per call from the target's hidden state and the next token's embedding.

    vLLM shares the target's embedding and head with it (``has_own_*`` are False).
    """

    has_own_embed_tokens = False
    has_own_lm_head = False

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.config = config = K3Config.from_hf(vllm_config.model_config.hf_config.to_dict())
        self.first, self.count = config.num_hidden_layers, config.num_nextn_predict_layers
        indices = range(self.first, self.first + self.count)
        shard = tensor_parallel_shard()
        self.model = nn.Module()
        self.model.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, prefix="model.embed_tokens"
        )
        self.model.layers = nn.ModuleDict({str(i): MtpLayer(config, i, shard) for i in indices})
        for i in indices:
            self.model.layers[str(i)].shared_head = _SharedHead(config, f"model.layers.{i}")
        self.logits_processor = LogitsProcessor(config.vocab_size)
        self.caches = {i: attention_cache(config, i, vllm_config) for i in indices}

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Token ids [T] → embeddings [T,D]."""
        return self.model.embed_tokens(input_ids)

    def _layer(self, spec_step_idx: int) -> Any:
        return self.model.layers[str(self.first + spec_step_idx % self.count)]

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        hidden_states: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        spec_step_idx: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """→ (normalised rows for the head [T,D], hidden rows for the next draft step [T,D])."""
        embedding = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        rows = step_rows()
        mixer = NullMixer() if rows is None else StandardMixer(self.caches, rows)
        layer = self._layer(spec_step_idx)
        hidden = layer(embedding, hidden_states, positions, mixer)
        return rms_norm(hidden, layer.shared_head.norm.weight, self.config.rms_norm_eps), hidden

    def compute_logits(self, hidden_states: Tensor, spec_step_idx: int = 0) -> Tensor | None:
        """[T,D] → draft logits [T,vocab]."""
        return self.logits_processor(self._layer(spec_step_idx).shared_head.head, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill the drafter's own parameters; the head and embedding come from the target."""
        filled = load_module(self, weights)
        missing = [name for name in missing_weights(self, filled) if ".shared_head.head." not in name]
        if missing:
            raise ValueError(f"checkpoint has no {', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}")
        return filled
