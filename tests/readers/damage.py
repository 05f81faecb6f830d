"""Damaged and hostile versions of real inputs."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import re
import secrets
from typing import Any

import yaml

SEED = int(os.environ.get("K3CTL_SEED") or 12)
"""Of the quick suites: the same inputs every time, so that a red test is somebody's doing."""
FRESH = int(os.environ.get("K3CTL_SEED") or secrets.randbelow(1 << 32))
"""Of the long ones."""
ODD: list[Any] = [
    None, True, False, 0, -1, 10**30, 1e308, float("nan"), float("inf"), "", "x", "\ud800", "\0", "../../x", [],
    [[]], {}, {"": None}, [None], "9" * 5000,
]  # fmt: skip
BYTES = [b"", b"\0", b"\xff\xfe", b"\n", b"{", b"}", b"[", b"]", b'"', b":", b"- ", b"&a *a", b"!!python/name:os ",
         b"NaN", b"1e999", b"<html>", b"\x1f\x8b", b"[" * 20_000, b"{" * 3_000, b"9" * 5_000]  # fmt: skip


def mutate_json(value: Any, chance: random.Random, rate: float = 0.04) -> Any:
    """The document with a share ``rate`` of its values replaced, and some removed, repeated or renamed."""
    if chance.random() < rate:
        return chance.choice(ODD)
    if isinstance(value, dict):
        items = [(key, mutate_json(inner, chance, rate)) for key, inner in value.items()]
        if items and chance.random() < rate:
            items.pop(chance.randrange(len(items)))
        if items and chance.random() < rate:
            items[0] = (chance.choice(["", "x", "\ud800"]), items[0][1])
        return dict(items)
    if isinstance(value, list):
        out = [mutate_json(inner, chance, rate) for inner in value]
        return out * 2 if out and chance.random() < rate / 2 else out
    return value


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    """The bytes with pieces cut, repeated, flipped or replaced."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out) + 1)
        end = min(len(out), at + chance.choice([0, 1, 1, 4, 64, 4096]))
        what = chance.randrange(4)
        if what == 0:
            out[at:end] = b""
        elif what == 1:
            out[at:at] = out[at:end]
        elif what == 2:
            out[at:end] = chance.choice(BYTES)
        elif at < len(out):
            out[at] ^= 1 << chance.randrange(8)
    return bytes(out)


def mutated(data: bytes, number: int) -> bytes:
    """A damaged version: of the documents in it, when there are any, or of the bytes."""
    chance = random.Random(number)
    found = _documents(data) if chance.random() < 0.6 else []
    if not found:
        return mutate_bytes(data, chance)
    rate = chance.choice([0.001, 0.01, 0.05])
    return "\n".join(_dumped(mutate_json(one, chance, rate), chance) for one in found).encode() + b"\n"


@functools.cache
def _documents(data: bytes) -> list[Any]:
    """JSON lines, or one JSON or YAML document (JSON is YAML, so a damaged one is written as JSON)."""
    for load in (
        lambda: [json.loads(line) for line in data.splitlines() if line.strip()],
        lambda: [json.loads(data)],
    ):
        with contextlib.suppress(ValueError):
            return load()
    with contextlib.suppress(yaml.YAMLError, ValueError):
        value = yaml.safe_load(data) if len(data) < 20_000 else None
        return [value] if isinstance(value, dict) else []
    return []


def _dumped(value: Any, chance: random.Random) -> str:
    """The document; now and then with a key that stands twice, a very deep value, or half a surrogate pair."""
    text = json.dumps(value, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    told = text.decode("utf-8", "replace")
    keys = list(re.finditer(r'"[a-z_A-Z]+": ', told))
    if keys and chance.random() < 0.15:
        place = chance.choice(keys)
        extra = chance.choice(["null", "[]", "{}", "-1", '"\\ud800"', "1e999", "[" * 50_000, "9" * 5_000])
        return told[: place.start()] + f"{place[0]}{extra}, " + told[place.start() :]
    return told
