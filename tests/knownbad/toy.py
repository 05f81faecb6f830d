"""A toy language model: one token per character, logits from a hash, real sampling, and answers by rote."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

ALPHABET = "abcdefghijklmnopqrstuvwxyz ."
EOS = "\x00"
SURE = 14.0
"""Logit of a character that was learned by rote; the others lie around 0."""


@dataclass(frozen=True)
class Token:
    """One generated character with its log probability and the most probable ones, best first."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Toy:
    """``rote``: what is answered to a prompt that contains the key; ``error``: added to logits (a rounding error).

    Its logits depend on the whole text before, however that is split into prompt and answer.
    """

    rote: Mapping[str, str] = field(default_factory=dict)
    error: Callable[[str, str], float] = field(default=lambda _, __: 0.0)

    def logits(self, prompt: str, said: str) -> dict[str, float]:
        """Character → logit after ``prompt`` and ``said``; every character of both moves them."""
        digest = hashlib.blake2b(f"{prompt}{said}".encode(errors="surrogateescape"), digest_size=56).digest()
        values = {char: digest[i] / 22 + digest[i + 28] / 4096 for i, char in enumerate(ALPHABET)}
        for key, answer in self.rote.items():
            if key in prompt and answer.startswith(said):
                values[(answer + EOS)[len(said)]] = SURE
                break
        return {char: value + self.error(prompt + said, char) for char, value in values.items()}

    def likeliest(self, prompt: str, said: str) -> list[tuple[str, float]]:
        """Characters with their log probabilities, likeliest first."""
        raw = _log_softmax(self.logits(prompt, said))
        return sorted(raw.items(), key=lambda one: -one[1])

    def generate(self, prompt: str, body: Mapping[str, Any]) -> tuple[list[Token], str]:
        """Tokens and finish reason of one answer."""
        said, tokens = "", list[Token]()
        most = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        seed = body.get("seed")
        source = random.Random(f"{seed}") if seed is not None else random.Random()
        stops = [body["stop"]] if isinstance(body.get("stop"), str) else list(body.get("stop") or ())
        while len(tokens) < most:
            token = _drawn(self.logits(prompt, said), body, source)
            if token.text == EOS and not body.get("ignore_eos"):
                return tokens, "stop"
            tokens.append(token)
            said += token.text
            if hit := next((stop for stop in stops if said.endswith(stop)), None):
                return tokens if body.get("include_stop_str_in_output") else tokens[: -len(hit)], "stop"
        return tokens, "length"


def _drawn(logits: Mapping[str, float], body: Mapping[str, Any], source: random.Random) -> Token:
    raw = _log_softmax(logits)
    order = sorted(raw, key=lambda char: -raw[char])
    temperature = float(body.get("temperature", 1.0))
    draw = source.random()
    chosen = order[0] if temperature == 0 else _sampled(logits, temperature, body, draw)
    return Token(chosen, raw[chosen], tuple((char, raw[char]) for char in order))


def _sampled(logits: Mapping[str, float], temperature: float, body: Mapping[str, Any], draw: float) -> str:
    shares = {
        c: math.exp(v) for c, v in _log_softmax({c: v / temperature for c, v in logits.items()}).items()
    }
    order = sorted(shares, key=lambda char: -shares[char])
    if (top_k := int(body.get("top_k") or 0)) > 0:
        order = order[:top_k]
    order = [char for char in order if shares[char] >= float(body.get("min_p") or 0) * shares[order[0]]]
    kept, mass, whole = list[str](), 0.0, sum(shares[char] for char in order)
    for char in order:
        if kept and mass >= float(body.get("top_p") or 1.0) * whole:
            break
        kept.append(char)
        mass += shares[char]
    at = draw * mass
    for char in kept:
        at -= shares[char]
        if at <= 0:
            return char
    return kept[-1]


def _log_softmax(logits: Mapping[str, float]) -> dict[str, float]:
    best = max(logits.values())
    norm = best + math.log(sum(math.exp(value - best) for value in logits.values()))
    return {char: value - norm for char, value in logits.items()}


def instance(schema: Mapping[str, Any]) -> Any:
    """Some value of a JSON schema: the first of an enum, the least of a range."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        return {name: instance(inner) for name, inner in schema.get("properties", {}).items()}
    if kind == "array":
        return [instance(schema.get("items", {})) for _ in range(max(1, int(schema.get("minItems", 1))))]
    simple = {"string": "x" * int(schema.get("minLength", 1)), "boolean": True, "number": 0.5, "null": None}
    return simple.get(str(kind), max(1, int(schema.get("minimum", 1))))


def arguments(tool: Mapping[str, Any]) -> str:
    """Arguments for a tool, as the text that a model writes."""
    return json.dumps(instance(tool["function"].get("parameters", {"type": "object"})))
