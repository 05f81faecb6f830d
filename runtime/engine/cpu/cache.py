"""Where attention state lives in vLLM's paged memory, and what each step says about it.

``KdaCache`` and ``LatentCache`` are the layer objects vLLM knows: they declare the shape of their pages and receive
the tensors. They hold no weights; the mathematics is in ``runtime.model``. Their backends carry metadata only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.attention.backends.linear_attn import BailingLinearAttentionMetadataBuilder
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.attention.backends.utils import mamba_get_block_table_tensor
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheSpec, MLAAttentionSpec

from runtime.model.config import K3Config
from runtime.model.decode import Batch


@dataclass(frozen=True)
class PagedRows:
    """One step as seen by one cache group.

    batch: lengths per sequence; starts: first token row of each; block_table [n,cols] int32 (KDA: state slot after
    draft token t in column t); slot_mapping [tokens] (MLA: page row of each token); accepted [n]: tokens accepted by
    the last verify step, which say from which column KDA starts (None without drafts in this step).
    """

    batch: Batch
    starts: tuple[int, ...]
    block_table: Tensor
    slot_mapping: Tensor | None = None
    accepted: Tensor | None = None


def _rows(
    common: CommonAttentionMetadata,
    block_table: Tensor,
    *,
    slot_mapping: Tensor | None = None,
    accepted: Tensor | None = None,
    drafts: Tensor | None = None,
) -> PagedRows:
    starts = common.query_start_loc_cpu.tolist()
    count = common.num_reqs
    while count and starts[count] == starts[count - 1]:  # padding rows hold no token
        count -= 1
    lengths = tuple(b - a for a, b in pairwise(starts[: count + 1]))
    batch = Batch(
        lengths,
        tuple(common.seq_lens[:count].tolist()),
        None if drafts is None else tuple(drafts[:count].tolist()),
    )
    return PagedRows(
        batch,
        tuple(starts[:count]),
        block_table[:count].long(),
        None if slot_mapping is None else slot_mapping[: batch.tokens].long(),
        None if accepted is None else accepted[:count].long(),
    )


class LatentMetadataBuilder(AttentionMetadataBuilder[PagedRows]):
    """Rows of the MLA group."""

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device) -> None:  # type: ignore[no-untyped-def]
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)  # abstract upstream

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> PagedRows:
        """See ``PagedRows``."""
        common = common_attn_metadata
        return _rows(common, common.block_table_tensor, slot_mapping=common.slot_mapping)


class LatentBackend(AttentionBackend):
    """Paged latent cache [blocks, block_size, L+dr]; any block size that is a multiple of 16."""

    supported_dtypes = [torch.float32, torch.bfloat16, torch.float16]  # noqa: RUF012  # vLLM's own type
    supported_kv_cache_dtypes = ["auto", "float16", "bfloat16"]  # noqa: RUF012

    @staticmethod
    def get_name() -> str:
        """Name in vLLM's logs."""
        return "K3_LATENT"

    @staticmethod
    def get_impl_cls() -> type:
        """The executor runs the mathematics, not a vLLM implementation class."""
        raise NotImplementedError

    @staticmethod
    def get_builder_cls() -> type[LatentMetadataBuilder]:
        """Metadata builder."""
        return LatentMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: KVCacheSpec | None = None) -> list[int | MultipleOf]:
        """Granularity of the block size."""
        return [MultipleOf(16)]

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        """vLLM guesses the page of a hybrid model before any layer exists; give it the latent row's real width."""
        return MLAAttentionSpec(
            block_size=spec.block_size,
            num_kv_heads=1,
            head_size=cls.row_width,
            dtype=spec.dtype,
            cache_dtype_str="auto",
        )

    row_width: int = 0


class LatentCache(AttentionLayerBase):
    """Pages of one MLA layer, [blocks, block_size, L+dr]."""

    supports_dcp = False

    def __init__(self, config: K3Config, vllm_config: VllmConfig, prefix: str) -> None:
        self.prefix, self.width = prefix, config.latent_dim
        LatentBackend.row_width = config.latent_dim
        self.kv_cache = torch.tensor([])
        vllm_config.compilation_config.static_forward_context[prefix] = self

    def get_attn_backend(self) -> type[AttentionBackend]:
        """Metadata-only backend."""
        return LatentBackend

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        """One latent row per token."""
        return MLAAttentionSpec(
            block_size=vllm_config.cache_config.block_size,
            num_kv_heads=1,
            head_size=self.width,
            dtype=vllm_config.model_config.dtype,
            cache_dtype_str="auto",
        )

    def bind_kv_cache(self, kv_cache: Tensor) -> None:
        """[blocks, 1, block_size, L+dr] → [blocks, block_size, L+dr]."""
        self.kv_cache = kv_cache.squeeze(1)


class KdaMetadataBuilder(BailingLinearAttentionMetadataBuilder):
    """Rows of a KDA group.

    The base class is chosen for its type only: vLLM 0.33's runner passes speculative arguments to a fixed list of
    builder classes.
    """

    supports_update_block_table = False

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device) -> None:  # type: ignore[no-untyped-def]
        AttentionMetadataBuilder.__init__(self, kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1, vllm_config.num_speculative_tokens > 0)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
        *,
        num_accepted_tokens: Tensor | None = None,
        num_decode_draft_tokens_cpu: Tensor | None = None,
    ) -> PagedRows:
        """See ``PagedRows``."""
        common = common_attn_metadata
        slots = mamba_get_block_table_tensor(
            common.block_table_tensor,
            common.seq_lens,
            self.kv_cache_spec,
            self.vllm_config.cache_config.mamba_cache_mode,
        )
        slots = slots[:, None] if slots.dim() == 1 else slots
        return _rows(common, slots, accepted=num_accepted_tokens, drafts=num_decode_draft_tokens_cpu)

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> PagedRows:
        """No graphs on this platform."""
        return self.build(0, common_attn_metadata)


class KdaBackend(AttentionBackend):
    """State slots; no token cache."""

    @staticmethod
    def get_name() -> str:
        """Name in vLLM's logs."""
        return "K3_KDA"

    @staticmethod
    def get_impl_cls() -> type:
        """The executor runs the mathematics, not a vLLM implementation class."""
        raise NotImplementedError

    @staticmethod
    def get_builder_cls() -> type[KdaMetadataBuilder]:
        """Metadata builder."""
        return KdaMetadataBuilder

    @classmethod
    def is_ssm(cls) -> bool:
        """A state-space layer for vLLM's scheduler."""
        return True


def kda_state_shape(config: K3Config, tp: int) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """Per slot: conv window [W-1, C/tp] and recurrent state [H/tp, V, K]."""
    heads = config.kda_num_heads // tp
    dim = config.kda_head_dim
    return (config.conv_width - 1, 3 * heads * dim), (heads, dim, dim)


class KdaCache(MambaBase):
    """State slots of one KDA layer: (windows [slots,W-1,C], recurrent [slots,H,V,K] FP32)."""

    def __init__(self, config: K3Config, vllm_config: VllmConfig, prefix: str) -> None:
        self.prefix = prefix
        self.shape = kda_state_shape(config, vllm_config.parallel_config.tensor_parallel_size)
        self.dtype = vllm_config.model_config.dtype
        self.kv_cache = (torch.tensor([]), torch.tensor([]))
        vllm_config.compilation_config.static_forward_context[prefix] = self

    def get_state_shape(self) -> tuple[tuple[int, int], tuple[int, int, int]]:
        """See ``kda_state_shape``."""
        return self.shape

    def get_state_dtype(self) -> tuple[torch.dtype, torch.dtype]:
        """Window in the model's dtype, recurrent state in FP32."""
        return self.dtype, torch.float32

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        """Kind of state-space layer."""
        return MambaAttentionBackendEnum.LINEAR

    def get_attn_backend(self) -> type[AttentionBackend]:
        """Metadata-only backend."""
        return KdaBackend
