"""The memory plan of one rank: what takes how much, what is left for the cache, how many sequences fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from k3ctl.facts.k3 import BF16, FP32, K3, MAX_POSITIONS, Shape
from k3ctl.planning.kvcache import CacheSettings, Geometry, geometry
from k3ctl.planning.weights import Parallel, WeightBytes, rank_weights

GIB = 2**30

RUNTIME_RESERVE_BYTES = int(2.7 * GIB)
"""Activations, graphs, CUDA context, NCCL and the drafter's weights.

Chosen so that the plan meets the one published cache budget: 46.48 GiB per rank on B300 at TP8, utilization
0.9, K=8, 1024 sequences (vLLM performance post, 2026-09-13). One data point: expect a few GiB of error.
"""
MOE_WORKSPACE_BYTES = int(1.6 * GIB)
"""MXFP4 workspace that vLLM's accounting does not see (out-of-memory reports on B200/B300, 2026)."""
DRAFTER_MLA_LAYERS = 5
"""Layers of the MLA drafter (``k3_dspark``); assumed, the drafter's config says."""


@dataclass(frozen=True)
class Settings:
    """What decides the plan. ``max_model_len`` None means ``auto``."""

    parallel: Parallel
    gpu_bytes: int
    gpu_memory_utilization: float
    cache: CacheSettings
    max_num_seqs: int
    max_model_len: int | None
    specialized: bool = False
    flashkda: bool = True
    kv_cache_memory_bytes: int | None = None


@dataclass(frozen=True)
class Item:
    """One use of memory on a rank."""

    name: str
    size_bytes: float
    basis: str


@dataclass(frozen=True)
class MemoryPlan:
    """The plan of the fullest rank."""

    weights: WeightBytes
    items: tuple[Item, ...]
    gpu_bytes: int
    budget_bytes: float
    """What vLLM may use: the GPU's memory times ``gpu_memory_utilization``."""
    cache_bytes: float
    """What is left for the cache; negative when the weights alone do not fit."""
    geometry: Geometry
    blocks: int
    sequence_tokens: int
    """Length that the concurrency is stated for."""
    sequences: float
    """Requests of ``sequence_tokens`` that fit at once."""
    max_num_seqs: int
    longest_tokens: int
    """Longest length at which ``max_num_seqs`` requests fit at once."""
    longest_single_tokens: int
    """Longest length of a single request."""
    outside_bytes: int
    """Needed beside vLLM's budget."""

    @property
    def fits(self) -> bool:
        """Whether at least one request of ``sequence_tokens`` fits."""
        return self.blocks > 0 and self.sequences >= 1

    def longest(self, requests: int) -> int:
        """Longest length at which ``requests`` requests fit at once, within the checkpoint's own limit."""
        return min(self.geometry.longest(self.blocks, requests), MAX_POSITIONS)

    def json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "per_rank": [{"name": i.name, "bytes": int(i.size_bytes), "basis": i.basis} for i in self.items],
            "gpu_bytes": self.gpu_bytes,
            "budget_bytes": int(self.budget_bytes),
            "cache_bytes": int(self.cache_bytes),
            "outside_bytes": self.outside_bytes,
            "block_tokens": self.geometry.block_tokens,
            "granule_tokens": self.geometry.granule_tokens,
            "block_bytes": self.geometry.block_bytes,
            "kda_blocks_per_request": self.geometry.kda_blocks_per_request,
            "num_gpu_blocks": self.blocks,
            "sequence_tokens": self.sequence_tokens,
            "sequences": round(self.sequences, 2),
            "max_num_seqs": self.max_num_seqs,
            "longest_tokens_at_max_num_seqs": self.longest_tokens,
            "longest_tokens_single": self.longest_single_tokens,
            "fits": self.fits,
            "label": "estimate",
        }


def plan(settings: Settings, sequence_tokens: int | None = None, shape: Shape = K3) -> MemoryPlan:
    """The memory plan; ``sequence_tokens`` defaults to the maximum length."""
    weights = rank_weights(settings.parallel, shape)
    items = (_weights_item(weights, settings), *_buffers(settings, shape))
    budget = settings.gpu_bytes * settings.gpu_memory_utilization
    used = sum(item.size_bytes for item in items)
    cache = settings.kv_cache_memory_bytes if settings.kv_cache_memory_bytes is not None else budget - used
    cells = geometry(settings.cache, shape)
    blocks = max(int(cache // cells.block_bytes), 0)
    single = min(cells.longest(blocks, 1), MAX_POSITIONS)
    tokens = sequence_tokens or settings.max_model_len or single or cells.granule_tokens
    return MemoryPlan(
        weights=weights,
        items=items,
        gpu_bytes=settings.gpu_bytes,
        budget_bytes=budget,
        cache_bytes=cache,
        geometry=cells,
        blocks=blocks,
        sequence_tokens=tokens,
        sequences=cells.sequences(blocks, tokens),
        max_num_seqs=settings.max_num_seqs,
        longest_tokens=min(cells.longest(blocks, settings.max_num_seqs), MAX_POSITIONS),
        longest_single_tokens=single,
        outside_bytes=MOE_WORKSPACE_BYTES,
    )


def _weights_item(weights: WeightBytes, settings: Settings) -> Item:
    parallel = settings.parallel
    padded = parallel.tp == 16 and not parallel.expert_parallel
    basis = "derived from the dimensions"
    return Item("weights", weights.total, basis + ("; experts padded to 256 columns" if padded else ""))


def _buffers(settings: Settings, shape: Shape) -> list[Item]:
    heads = shape.heads // settings.parallel.tp
    items = []
    if settings.flashkda:
        states = 2 * settings.max_num_seqs * heads * shape.head_dim**2 * FP32
        items.append(Item("FlashKDA states", states, f"two per sequence × {settings.max_num_seqs} sequences"))
    if settings.cache.replayssm:
        records = replay_record_bytes(settings.cache, shape) * settings.max_num_seqs
        items.append(Item("ReplaySSM records", records, f"per sequence × {settings.max_num_seqs} sequences"))
    if settings.specialized:
        items.append(
            Item(
                "specialized decode",
                specialized_bytes(settings.parallel.tp, shape),
                "packed copies, mailboxes",
            )
        )
    items.append(
        Item("activations, graphs, drafter", RUNTIME_RESERVE_BYTES, "reserve met by one published budget")
    )
    return items


def replay_record_bytes(cache: CacheSettings, shape: Shape = K3) -> int:
    """ReplaySSM's verify records of one sequence slot on one rank, over all KDA layers."""
    heads = shape.heads // cache.parallel.tp
    return (512 + 512) * heads * (1 + cache.draft_tokens) * shape.kda_layers


def packed_front_bytes(tp: int, shape: Shape = K3) -> int:
    """Specialized decode's packed copy of this rank's router rows (padded to 16) and latent down rows."""
    router = -(-(shape.experts // tp) // 16) * 16
    return (router + shape.latent // tp) * shape.hidden * BF16 * shape.moe_layers


def specialized_bytes(tp: int, shape: Shape = K3) -> int:
    """All that specialized decode adds on a rank: packed copy, mailboxes, the MLA core's workspace."""
    mailboxes = {8: 37_000_000, 16: 62_000_000}.get(tp, 0)
    return packed_front_bytes(tp, shape) + mailboxes + 128 * 2**20
