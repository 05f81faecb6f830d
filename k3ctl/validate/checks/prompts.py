"""What checks ask: token ids where a tokenizer must not matter, text where it must. Deterministic."""

from __future__ import annotations

import random
from typing import Any

LOW, HIGH = 16, 200
"""Ids that every tokenizer of a real model has, above the few special ones."""

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean"},
        "color": {"enum": ["red", "green"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["ok", "color", "n"],
    "additionalProperties": False,
}
QUESTION = "Give a color, a number below 100 and whether you are sure, as JSON."


def tokens(length: int, seed: int) -> list[int]:
    """A prompt of ``length`` token ids."""
    rng = random.Random(seed)
    return [rng.randrange(LOW, HIGH) for _ in range(length)]


def greedy(prompt: Any, most: int, **more: Any) -> dict[str, Any]:
    """A completion at temperature 0 whose tokens and likeliest alternatives are told; it does not end early."""
    return {
        "prompt": prompt,
        "max_tokens": most,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 5,
        "return_tokens_as_token_ids": True,
        **more,
    }


def salted(body: dict[str, Any], salt: str) -> dict[str, Any]:
    """The same with a prefix cache of its own: requests of another salt never hit it."""
    return {**body, "cache_salt": salt}


def user(text: str) -> list[dict[str, str]]:
    """A chat with one message."""
    return [{"role": "user", "content": text}]
