"""Why a prefix cache that is on never hits. Rules of vLLM 0.33.0 for models with recurrent state, read in its source
(``v1/core/kv_cache_coordinator.py``, ``config/cache.py``). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from k3ctl.telemetry.view import EngineView

MIN_QUERIED_TOKENS = 100_000
MIN_FINISHED = 100
SHORT_SHARE = 0.8
"""Mean prompt, as a share of a block, up to which prompts count as too short: histogram buckets are coarse."""


@dataclass(frozen=True)
class NoHits:
    """The finding: figures with the reason that fits, and what to set."""

    detail: str
    action: str


def no_hits(engine: EngineView) -> NoHits | None:
    """The finding for one engine; None when caching is off or unknown, little was asked, or something hit."""
    totals, info = engine.load.totals, engine.cache_info
    queried = totals.get("prefix_queries", 0.0)
    finished = sum(engine.load.finished.values())
    if info.get("enable_prefix_caching") != "True" or totals.get("prefix_hits", 0.0) > 0:
        return None
    if queried < MIN_QUERIED_TOKENS or finished < MIN_FINISHED:
        return None
    block, length = _block(info), engine.load.prompt_length
    asked = f"{queried:.0f} prompt tokens of {finished:.0f} requests looked up, none found"
    if block and length is not None and length.p99.low < block and length.mean_s <= SHORT_SHARE * block:
        return NoHits(
            f"{asked}: prompts have {length.mean_s:.0f} tokens on average, and a hit "
            f"needs more than one block of {block}",
            "nothing to set: prompts this short cannot hit; --no-enable-prefix-caching frees their bookkeeping",
        )
    retention = info.get("prefix_cache_retention_interval", "")
    if retention == "0":
        some = f"blocks of {block} tokens" if block else "whole blocks"
        return NoHits(
            f"{asked}: retention interval 0 keeps state only at the end of a prompt and where a second request showed "
            f"that a prefix is shared, in {some}; the first two requests that share a prefix cannot hit",
            "requests that share a prefix only now and then need --prefix-cache-retention-interval, a multiple "
            f"of {block or 'the block size'}; if prompts repeat exactly and still miss, a router spreads them over "
            "engines, or a salt, template date or tool list changes their beginning",
        )
    kept = f"state is kept every {retention} tokens" if retention.isdecimal() else "state is kept densely"
    return NoHits(
        f"{asked}: {kept}, so no two prompts began alike or what was kept is gone",
        "compare two prompts as tokens (template date, salt, tool list); check that a router sends a session to one "
        "engine, and that the KV cache is not full",
    )


def _block(info: Mapping[str, str]) -> int | None:
    """Tokens per block that a hit is made of: the state's and attention's common block."""
    sizes = [
        info.get(name, "") for name in ("mamba_block_size", "effective_attention_block_size", "block_size")
    ]
    known = [int(size) for size in sizes if size.isdecimal()]
    return max(known) if known else None
