"""What a prefix cache over KDA state will hit and what it will not, for vLLM 0.33.0.

A hit needs the recurrent state at the place where it ends, and state is kept at few places: at the last block boundary
before the end of a prompt, at a junction that a second request has shown, and every ``interval`` tokens where one is
set. States of answers are never kept. Read in ``v1/core/kv_cache_coordinator.py``, ``config/cache.py`` and
``config/speculative.py``; the boundaries were compared by brute force for prompts below 6000 tokens at a block of 768.
Not compared: a drafter group with smaller blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from k3ctl.planning.kvcache import geometry
from k3ctl.planning.proposal import Proposal

LOOKAHEAD = ("mtp", "deepseek_mtp", "eagle", "eagle3")
"""Speculators that look one block ahead; a KV connector then costs them the last block of a hit."""


@dataclass(frozen=True)
class PrefixPlan:
    """The prefix cache of one deployment."""

    block_tokens: int
    """Hits come in steps of this many tokens."""
    interval: int
    """``prefix_cache_retention_interval``; 0, vLLM's default, keeps state at the ends of prompts and at junctions."""
    dropped_blocks: int
    """Blocks that the end of a hit loses: 1 for a speculator that looks ahead, with a KV connector."""

    def repeated(self, prompt: int) -> int:
        """Tokens that a prompt of ``prompt`` tokens hits when it comes again; the last token is always computed."""
        return max((prompt - 1) // self.block_tokens - self.dropped_blocks, 0) * self.block_tokens

    def shared(self, prefix: int, *, seen: int) -> int:
        """Tokens that a request hits of a ``prefix`` shared with ``seen`` earlier requests, and with no more of them.

        The place where two requests part is learned from the second, so the third is the first to hit there.
        """
        step = self.block_tokens if seen > 1 else self.interval
        if not seen or not step:
            return 0
        return max(prefix // step * step - self.dropped_blocks * self.block_tokens, 0)

    @property
    def never(self) -> int:
        """The longest prompt that hits nothing when it comes again."""
        return (1 + self.dropped_blocks) * self.block_tokens

    def lines(self, prompt: int | None) -> list[str]:
        """What will hit and what will not, in words; figures for a prompt of ``prompt`` tokens."""
        out = [
            f"prefix cache: hits come in blocks of {self.block_tokens:,} tokens; a prompt of at most {self.never:,} "
            "tokens never hits",
            "  will hit: the same prompt again, from its second use on; the next turn of a conversation, up to the end "
            "of the prompt before; a prefix shared with two or more earlier requests",
        ]
        if self.interval:
            out.append(
                f"  also: a shared prefix from the second request on, in steps of {self.interval:,} tokens"
            )
            missed = "  will not hit: the tokens of earlier answers"
        else:
            missed = (
                "  will not hit: a prefix shared with only one earlier request (prefix_cache_retention_interval as a "
                f"multiple of {self.block_tokens:,} for that); the tokens of earlier answers"
            )
        out.append(missed)
        if prompt is not None:
            again, third = self.repeated(prompt), self.shared(prompt, seen=2)
            out.append(
                f"  a prompt of {prompt:,} tokens: {again:,} hit when it comes again ({again / prompt:.0%}); as a "
                f"prefix of longer prompts {self.shared(prompt, seen=1):,} for the second request, {third:,} from the "
                "third on"
            )
        return out

    def json(self, prompt: int | None) -> dict[str, Any]:
        """Plain data."""
        found: dict[str, Any] = {
            "block_tokens": self.block_tokens,
            "retention_interval": self.interval,
            "longest_prompt_without_hit": self.never,
        }
        if prompt is not None:
            found["prompt_tokens"] = prompt
            found["hit_when_repeated"] = self.repeated(prompt)
            found["hit_as_prefix_by_second"] = self.shared(prompt, seen=1)
            found["hit_as_prefix_by_third"] = self.shared(prompt, seen=2)
        return found


def of(d: Proposal) -> PrefixPlan | None:
    """The prefix cache of ``d``; None where it is off, or where the block is not known (CPU, another model or size)."""
    if not d.prefix_caching or d.on_cpu or not d.whole_k3 or d.parallel.tp not in (1, 2, 4, 8, 16, 32):
        return None
    ahead = d.method in LOOKAHEAD and bool(d.connectors)
    interval = int(d.arg("prefix_cache_retention_interval", 0) or 0)
    return PrefixPlan(geometry(d.memory_settings.cache).granule_tokens, interval, int(ahead))
