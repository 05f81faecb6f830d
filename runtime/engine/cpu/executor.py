"""The two paths of a step over paged state: *standard* (any batch) and *specialized* (uniform decode rows).

On CPU both run the reference mathematics: the standard path walks the sequences one by one, the specialized path
batches them, inside the reference provider of the step's loop. Its mixers are all that knows vLLM's pages.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from runtime.engine.cpu.cache import KdaCache, LatentCache, PagedRows
from runtime.model.decode import Path, Plan
from runtime.model.layers import KdaInputs, KdaLayer, MlaInputs, MlaLayer
from runtime.model.mixing import (
    KdaState,
    kda_sequence,
    kda_uniform,
    mla_sequence,
    mla_uniform,
    select,
)
from runtime.model.providers.reference import AttentionMixer

Caches = Mapping[int, KdaCache | LatentCache]


def mixer_for(plan: Plan, caches: Caches, rows: Mapping[str, PagedRows]) -> AttentionMixer:
    """The executor of a planned step. ``rows``: vLLM's metadata by cache name."""
    kind = SpecializedMixer if plan.path is Path.SPECIALIZED else StandardMixer
    return kind(caches, rows)


class NullMixer:
    """For vLLM's profiling and warm-up passes, which carry no batch: zeros of the right shape, no state touched."""

    def kda(self, index: int, layer: KdaLayer, inputs: KdaInputs) -> Tensor:
        """Zeros [T,H,V]."""
        return torch.zeros_like(inputs.gate, dtype=torch.float32)

    def mla(self, index: int, layer: MlaLayer, inputs: MlaInputs) -> Tensor:
        """Zeros [T,N,dv]."""
        return torch.zeros_like(inputs.gate).view(-1, layer.heads, layer.config.v_head_dim)


class _PagedMixer:
    def __init__(self, caches: Caches, rows: Mapping[str, PagedRows]) -> None:
        self.caches, self.rows = caches, rows

    def _kda_slots(self, index: int) -> tuple[PagedRows, Tensor, Tensor, Tensor]:
        """Rows, windows, recurrent states, and the slot each sequence starts from."""
        cache = self.caches[index]
        assert isinstance(cache, KdaCache)
        rows = self.rows[cache.prefix]
        column = torch.zeros(len(rows.starts), dtype=torch.long)
        if rows.accepted is not None:
            column = (rows.accepted - 1).clamp_min(0)
        start = rows.block_table[torch.arange(len(rows.starts)), column]
        windows, states = cache.kv_cache
        # a sequence without a past starts from zeros, whatever its slot held before
        fresh = torch.tensor([rows.batch.computed(i) == 0 for i in range(len(rows.starts))])
        windows[start[fresh]], states[start[fresh]] = 0, 0
        return rows, windows, states, start

    def _latent_pages(self, index: int, latent: Tensor) -> tuple[PagedRows, Tensor]:
        """Rows and pages, after writing this step's cache rows."""
        cache = self.caches[index]
        assert isinstance(cache, LatentCache)
        rows, pages = self.rows[cache.prefix], cache.kv_cache
        assert rows.slot_mapping is not None
        block_size = pages.shape[1]
        pages[rows.slot_mapping // block_size, rows.slot_mapping % block_size] = latent[
            : rows.batch.tokens
        ].to(pages.dtype)
        return rows, pages


class StandardMixer(_PagedMixer):
    """Any batch, sequence by sequence: prefill chunks, decodes and verify rows of any length."""

    def kda(self, index: int, layer: KdaLayer, inputs: KdaInputs) -> Tensor:
        """→ o [T,H,V]; the state after each verify token goes to its column, other rows keep the last state only."""
        rows, windows, states, start = self._kda_slots(index)
        out = torch.zeros_like(inputs.gate, dtype=torch.float32)
        for i, first in enumerate(rows.starts):
            length = rows.batch.query_lens[i]
            mine = slice(first, first + length)
            slots, source = rows.block_table[i], start[i]
            if rows.batch.is_decode(i):
                o, window, state = kda_uniform(
                    layer,
                    select(inputs, mine),
                    windows[source][None].to(inputs.qkv.dtype),
                    states[source][None],
                )
                windows[slots[:length]] = window[0].to(windows.dtype)
                states[slots[:length]] = state[0]
            else:
                before = KdaState(windows[source].to(inputs.qkv.dtype), states[source])
                o, after = kda_sequence(layer, select(inputs, mine), before)
                windows[slots[0]] = after.window.to(windows.dtype)
                states[slots[0]] = after.recurrent
            out[mine] = o
        return out

    def mla(self, index: int, layer: MlaLayer, inputs: MlaInputs) -> Tensor:
        """→ o [T,N,dv]."""
        rows, pages = self._latent_pages(index, inputs.latent)
        out = NullMixer().mla(index, layer, inputs)
        for i, first in enumerate(rows.starts):
            length, total = rows.batch.query_lens[i], rows.batch.seq_lens[i]
            mine = slice(first, first + length)
            used = rows.block_table[i, : -(-total // pages.shape[1])]
            context = pages[used].flatten(0, 1)[:total].to(inputs.q.dtype)
            out[mine] = mla_sequence(layer, inputs.q[mine], context, torch.arange(total - length, total))
        return out


class SpecializedMixer(_PagedMixer):
    """Uniform decode or verify rows, all sequences at once."""

    def kda(self, index: int, layer: KdaLayer, inputs: KdaInputs) -> Tensor:
        """→ o [T,H,V]; the state after token t of every sequence goes to column t."""
        rows, windows, states, start = self._kda_slots(index)
        length = rows.batch.query_lens[0]
        o, window, state = kda_uniform(
            layer,
            select(inputs, slice(0, rows.batch.tokens)),
            windows[start].to(inputs.qkv.dtype),
            states[start],
        )
        targets = rows.block_table[:, :length]
        windows[targets] = window.to(windows.dtype)
        states[targets] = state
        return _pad_rows(o, inputs.gate.shape[0])

    def mla(self, index: int, layer: MlaLayer, inputs: MlaInputs) -> Tensor:
        """→ o [T,N,dv]."""
        rows, pages = self._latent_pages(index, inputs.latent)
        lengths = torch.tensor(rows.batch.seq_lens)
        used = rows.block_table[:, : -(-int(lengths.max()) // pages.shape[1])]
        context = pages[used].flatten(1, 2)[:, : int(lengths.max())].to(inputs.q.dtype)
        o = mla_uniform(layer, inputs.q[: rows.batch.tokens], context, lengths)
        return _pad_rows(o, inputs.q.shape[0])


def _pad_rows(x: Tensor, rows: int) -> Tensor:
    """Zero rows for the padding an engine may append to a step."""
    return x if x.shape[0] == rows else torch.cat([x, x.new_zeros(rows - x.shape[0], *x.shape[1:])])
