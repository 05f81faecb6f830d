"""K3 as a vLLM model class: vocabulary, caches, the choice of path per step. The layers are ``runtime.model``'s."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.mamba.mamba_utils import get_temporal_copy_spec
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models.interfaces import HasInnerState, IsHybrid
from vllm.platforms import current_platform

from runtime import witness
from runtime.engine import upstream_fixes
from runtime.engine.cpu import ops as cpu_ops
from runtime.engine.cpu.cache import KdaCache, LatentCache, PagedRows, kda_state_shape
from runtime.engine.cpu.executor import NullMixer, mixer_for
from runtime.engine.cpu.setup import SPECIALIZED, decode_setup, tensor_parallel_shard
from runtime.model.config import K3Config
from runtime.model.decode import DecodeSetup, plan
from runtime.model.model import Decoder
from runtime.model.providers.reference import AttentionMixer
from runtime.model.weights import load_module, missing_weights
from runtime.witness.about import who


class K3ForCausalLM(nn.Module, HasInnerState, IsHybrid):
    """The served K3. One instance per worker."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        cpu_ops.install_hybrid_kernels()
        upstream_fixes.fix_accepted_counts()
        self.config = K3Config.from_hf(vllm_config.model_config.hf_config.to_dict())
        self.setup = decode_setup(vllm_config)
        self.model = Decoder(self.config, tensor_parallel_shard())
        self.model.embed_tokens = VocabParallelEmbedding(
            self.config.vocab_size, self.config.hidden_size, prefix="model.embed_tokens"
        )
        self.lm_head = ParallelLMHead(self.config.vocab_size, self.config.hidden_size, prefix="lm_head")
        self.logits_processor = LogitsProcessor(self.config.vocab_size)
        self.caches = {
            i: attention_cache(self.config, i, vllm_config) for i in range(self.config.num_hidden_layers)
        }
        self.first_kda = next(c.prefix for c in self.caches.values() if isinstance(c, KdaCache))
        self.witness = witness.install(_about(self.setup, vllm_config))

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Token ids [T] → embeddings [T,D]."""
        return self.model.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """One step → the final mixture [T,D]; MLA is NoPE and KDA recurrent, so positions are not used."""
        x = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        return self.model(x, self._mixer())

    def _mixer(self) -> AttentionMixer:
        """Plan the step and record the path it takes."""
        rows = step_rows()
        if rows is None:
            return NullMixer()
        batch = rows[self.first_kda].batch
        if not batch.query_lens:
            return NullMixer()
        step = plan(batch, self.setup)
        self.witness.record(
            witness.Key(step.path.value, step.kind.value, "eager", step.reason),
            len(batch.query_lens),
            batch.tokens,
        )
        return mixer_for(step, self.caches, rows)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """[T,D] → logits [T,vocab] (on the first rank)."""
        return self.logits_processor(self.lm_head, self.model.normalize(hidden_states))

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill every parameter from checkpoint names; ``ValueError`` names what is missing."""
        filled = load_module(self, weights)
        if missing := missing_weights(self, filled):
            raise ValueError(f"checkpoint has no {', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}")
        return filled

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: VllmConfig) -> tuple[torch.dtype, torch.dtype]:
        """Dtypes of the KDA state (see ``KdaCache``)."""
        return vllm_config.model_config.dtype, torch.float32

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: VllmConfig) -> tuple[tuple[int, ...], ...]:
        """Shapes of the KDA state (see ``kda_state_shape``)."""
        config = K3Config.from_hf(vllm_config.model_config.hf_config.to_dict())
        return kda_state_shape(config, vllm_config.parallel_config.tensor_parallel_size)

    @classmethod
    def get_mamba_state_copy_func(cls) -> tuple[Any, Any]:
        """Window and recurrent state are both kept per slot: copying the slot copies the state."""
        return get_temporal_copy_spec, get_temporal_copy_spec


def attention_cache(config: K3Config, index: int, vllm_config: VllmConfig) -> KdaCache | LatentCache:
    """Declare the state of layer ``index`` to vLLM."""
    kind = KdaCache if config.is_kda(index) else LatentCache
    return kind(config, vllm_config, f"model.layers.{index}.self_attn")


def step_rows() -> dict[str, PagedRows] | None:
    """This step's metadata by cache name, or None in vLLM's profiling and warm-up passes."""
    metadata = get_forward_context().attn_metadata
    return metadata if isinstance(metadata, dict) and metadata else None


def _about(setup: DecodeSetup, vllm_config: VllmConfig) -> dict[str, Any]:
    return {
        **who(vllm_config),
        "platform": current_platform.device_type,
        "decode_backend": SPECIALIZED if setup.requested else "auto",
        "max_rows": setup.max_rows,
        "query_len": setup.query_len,
        "refused": list(setup.refused),
    }
