"""vLLM's paged cache for Kimi K3: block geometry, what a request holds, how many requests fit.

Sources (vLLM 0.33.0): block size from ``platforms/interface.py``, layer groups from
``v1/core/kv_cache_planning.py``, blocks per request from ``MambaSpec`` in ``v1/kv_cache_interface.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from k3ctl.facts.k3 import BF16, FP32, K3, Shape
from k3ctl.planning.weights import Parallel

BLOCK_ALIGNMENT = 128
"""MLA kernels need a block of a multiple of 128 tokens."""
KV_BYTES = {"auto": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1}
"""Bytes per cached number by ``--kv-cache-dtype``."""


@dataclass(frozen=True)
class CacheSettings:
    """What decides the cache's geometry."""

    parallel: Parallel
    kv_dtype: str = "auto"
    ssm_bytes: int = FP32
    draft_tokens: int = 0
    prefix_caching: bool = True
    replayssm: bool = False
    checkpoint_export: bool = True
    """The KDA prefill kernel exports checkpoints from inside a prompt (FlashKDA does)."""
    drafter_mla_layers: int = 0

    @property
    def kv_bytes(self) -> int:
        """Bytes per cached number."""
        return KV_BYTES.get(self.kv_dtype, 2)


def recurrent_bytes(settings: CacheSettings, shape: Shape = K3) -> int:
    """Recurrent KDA state of one request in one layer on one rank."""
    return shape.heads // settings.parallel.tp * shape.head_dim * shape.head_dim * settings.ssm_bytes


def conv_bytes(settings: CacheSettings, shape: Shape = K3) -> int:
    """Convolution window of one request in one layer on one rank: 3 tokens, and one per draft token."""
    channels = 3 * shape.heads // settings.parallel.tp * shape.head_dim
    return (shape.conv_width - 1 + settings.draft_tokens) * channels * BF16


@dataclass(frozen=True)
class Geometry:
    """Blocks of the pool on one rank."""

    block_tokens: int
    """Tokens of one MLA block on one rank."""
    granule_tokens: int
    """Tokens of a sequence that one block stands for: prefix hits come in these steps."""
    page_bytes: int
    """One layer's page."""
    layers_per_block: int
    """Layer pages in one pool block."""
    kda_groups: int
    kda_blocks_per_request: int
    """Blocks that a running request holds for KDA, whatever its length."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one pool block on one rank."""
        return self.page_bytes * self.layers_per_block

    def blocks_for(self, tokens: int) -> int:
        """Pool blocks that a request of ``tokens`` needs."""
        return ceil(tokens / self.granule_tokens) + self.kda_blocks_per_request

    def sequences(self, blocks: int, tokens: int) -> float:
        """Requests of ``tokens`` that fit into ``blocks``, as vLLM's start-up line states it."""
        return blocks / self.blocks_for(tokens)

    def longest(self, blocks: int, requests: int) -> int:
        """Longest length at which ``requests`` fit at once, without the block that vLLM keeps back."""
        per_request = (blocks - 1) // requests - self.kda_blocks_per_request
        return max(per_request, 0) * self.granule_tokens


def geometry(settings: CacheSettings, shape: Shape = K3) -> Geometry:
    """The pool's geometry on the fullest rank."""
    per_token = shape.kv_width * settings.kv_bytes
    kda_page = recurrent_bytes(settings, shape) + conv_bytes(settings, shape)
    block = BLOCK_ALIGNMENT * ceil(kda_page / (BLOCK_ALIGNMENT * per_token))
    mla_layers = len(shape.mla_layers) + settings.drafter_mla_layers
    group = _group_size(mla_layers, shape.kda_layers)
    kda_groups = ceil(shape.kda_layers / group)
    return Geometry(
        block_tokens=block,
        granule_tokens=block * settings.parallel.dcp,
        page_bytes=block * per_token,
        layers_per_block=_widest_group(settings, shape, group, kda_groups),
        kda_groups=kda_groups,
        kda_blocks_per_request=kda_groups * states_per_request(settings),
    )


def states_per_request(settings: CacheSettings) -> int:
    """KDA state copies that a running request holds in each layer group.

    One per draft token besides its own (none with ReplaySSM); with prefix caching one more for the boundary
    state, and one more where the prefill kernel exports checkpoints.
    """
    drafts = 0 if settings.replayssm else settings.draft_tokens
    if not settings.prefix_caching:
        return 1 + drafts
    return 2 + drafts + settings.checkpoint_export


def _group_size(mla_layers: int, kda_layers: int) -> int:
    fewest, most = sorted((mla_layers, kda_layers))
    return most if most < 1.5 * fewest else fewest


def _widest_group(settings: CacheSettings, shape: Shape, group: int, kda_groups: int) -> int:
    """Pages per block on the fullest pipeline stage; each KDA group takes every n-th KDA layer."""
    if settings.parallel.pp == 1:
        return group
    widths = []
    for stage in shape.stages(settings.parallel.pp):
        mla = sum(layer in stage for layer in shape.mla_layers)
        kda = [i for i, layer in enumerate(_kda_indices(shape)) if layer in stage]
        per_group = max(sum(i % kda_groups == g for i in kda) for g in range(kda_groups))
        widths.append(max(mla, per_group))
    return max(widths)


def _kda_indices(shape: Shape) -> list[int]:
    return [layer for layer in range(shape.layers) if layer not in shape.mla_layers]
