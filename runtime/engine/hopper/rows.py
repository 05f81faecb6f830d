"""What vLLM's metadata says about a decode step: the batch for ``decode.plan``, and where KDA's requests keep state.

vLLM stages these tensors in persistent buffers before a graph replays, padded with the null slot (0), so a captured
kernel may keep their addresses. Decode rows come from ``non_spec_state_indices_tensor``, verify rows from
``spec_state_indices_tensor`` with ``num_accepted_tokens``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from runtime.kernels.mla.spec import Context
from runtime.model.decode import Batch
from runtime.model.providers.kda import KdaRows


def layer_name(attention: Any) -> str:
    """The name under which vLLM keeps a layer's metadata."""
    return str(getattr(attention, "prefix", None) or attention.layer_name)


def batch_of(metadata: Sequence[Any], token_rows: int) -> Batch | None:
    """The batch that a graph of ``token_rows`` rows is captured for, agreed by all layers; None if any says otherwise.

    A graph pads whole requests, so its rows are ``token_rows`` over the tokens per request. Prompt rows, a mixture of
    decode and verify rows, and layers without metadata give a batch that ``decode.plan`` refuses, or None.
    """
    batches = {_batch(layer, token_rows) for layer in metadata}
    return batches.pop() if len(batches) == 1 else None


def _batch(metadata: Any, token_rows: int) -> Batch | None:
    if metadata is None:
        return None
    if metadata.num_prefills:  # one prompt row is enough to say what the step holds
        return Batch((token_rows,), (token_rows,))
    if hasattr(metadata, "num_spec_decodes"):
        return _kda_batch(metadata, token_rows)
    requests, tokens = metadata.num_decodes, metadata.num_decode_tokens
    if not requests or tokens % requests or token_rows % (tokens // requests):
        return None
    return uniform(token_rows, tokens // requests)


def _kda_batch(metadata: Any, token_rows: int) -> Batch | None:
    """Decode rows only, or verify rows only, one state row per request of the graph."""
    if not metadata.num_spec_decodes:
        slots = metadata.non_spec_state_indices_tensor
        return uniform(token_rows, 1) if slots is not None and slots.shape[0] == token_rows else None
    slots = metadata.spec_state_indices_tensor
    if metadata.num_decodes or slots is None or not slots.shape[0] or token_rows % slots.shape[0]:
        return None
    query_len = token_rows // slots.shape[0]
    if metadata.num_spec_decode_tokens != metadata.num_spec_decodes * query_len or slots.shape[1] < query_len:
        return None
    return uniform(token_rows, query_len)


def uniform(token_rows: int, query_len: int) -> Batch:
    """Requests of ``query_len`` tokens each, with a past (its length is not known when a graph is captured)."""
    requests = token_rows // query_len
    lens = (query_len,) * requests
    drafts = (query_len - 1,) * requests if query_len > 1 else None
    return Batch(lens, tuple(n + 1 for n in lens), drafts)


def kda_rows(attention: Any, metadata: Any, query_len: int, channels_first: bool) -> KdaRows:
    """The state of a planned step's requests in one KDA layer.

    channels_first: whether vLLM keeps windows as [S,channels,W] (its DS layout) and not [S,W,channels].
    """
    conv_state, state = attention.kv_cache[:2]
    if channels_first:
        conv_state = conv_state.transpose(1, 2)
    if query_len == 1:
        slots: Tensor = metadata.non_spec_state_indices_tensor
        return KdaRows(conv_state, state, slots.view(-1, 1), None)
    slots = metadata.spec_state_indices_tensor[:, :query_len]
    return KdaRows(conv_state, state, slots, metadata.num_accepted_tokens[: slots.shape[0]])


def mla_context(attention: Any, metadata: Any, slots: Any, requests: int, query_len: int) -> Context | None:
    """The pages of a planned step's requests in one MLA layer; None if its metadata has not as many.

    slots: vLLM's mapping by layer name, whose entries are negative for padding; so are lengths of 0.
    """
    decode, mapping = metadata.decode, slots.get(layer_name(attention)) if isinstance(slots, dict) else None
    if decode is None or mapping is None:
        return None
    table, lengths, tokens = decode.block_table, decode.seq_lens, requests * query_len
    if table.shape[0] < requests or lengths.shape[0] < requests or mapping.shape[0] < tokens:
        return None
    return Context(attention.kv_cache, table[:requests], lengths[:requests], mapping[:tokens])


def mla_padding(attention: Any, requests: int, query_len: int) -> Context:
    """A step of padding requests on the pages of one MLA layer: nothing is read or stored."""
    cache: Tensor = attention.kv_cache

    def make(shape: tuple[int, ...], value: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.full(shape, value, dtype=dtype, device=cache.device)

    slots = make((requests * query_len,), -1, torch.int64)
    return Context(cache, make((requests, 1), -1), make((requests,), 0), slots)
