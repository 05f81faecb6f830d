"""Faults that show in what the model is asked: sampling, seeds, stop strings, context, prefixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

SHARED_CHARS = 64
SHARED_IDS = 16
"""A prefix cache works in blocks: less than one block is never shared."""
LONG_CHARS = 600
LONG_IDS = 150


@dataclass(frozen=True)
class Asked:
    """A prompt that went by: its route, its cache key, its text or token ids, and the body that carried it."""

    path: str
    salt: str
    prompt: str | tuple[int, ...]
    body: Json


def asked(path: str, body: Json) -> Asked | None:
    """The prompt of a request; None where it has none that a single answer belongs to."""
    salt = str(body.get("cache_salt") or "")
    messages, prompt = body.get("messages"), body.get("prompt")
    if isinstance(messages, list):
        return Asked(path, salt, "\n".join(_text(message) for message in messages), body)
    if isinstance(prompt, str):
        return Asked(path, salt, prompt, body)
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return Asked(path, salt, tuple(prompt), body)
    return None


def stale(path: str, body: Json, earlier: list[Asked]) -> Json:
    """The earlier prompt that shares a long enough beginning with this one."""
    now = asked(path, body)
    if now is None:
        return body
    for before in earlier:
        if (before.path, before.salt) == (now.path, now.salt) and _shares(before.prompt, now.prompt):
            return body | {key: before.body[key] for key in ("messages", "prompt") if key in before.body}
    return body


def greedy(_: str, body: Json, __: list[Asked]) -> Json:
    """Never samples."""
    return body | {"temperature": 0}


def temperature(_: str, body: Json, __: list[Asked]) -> Json:
    """Samples at temperature 1, whatever was asked; greedy stays greedy."""
    return body if body.get("temperature") == 0 else body | {"temperature": 1.0}


def truncation(_: str, body: Json, __: list[Asked]) -> Json:
    """Samples from all tokens."""
    return _without(body, "top_p", "top_k", "min_p")


def seed(_: str, body: Json, __: list[Asked]) -> Json:
    """Every request is drawn anew."""
    return _without(body, "seed")


def stop(_: str, body: Json, __: list[Asked]) -> Json:
    """Goes on past every stop."""
    return _without(body, "stop", "stop_token_ids")


def context(_: str, body: Json, __: list[Asked]) -> Json:
    """Of a long prompt the first half is never read."""
    messages, prompt = body.get("messages"), body.get("prompt")
    if isinstance(messages, list):
        return body | {"messages": [_halved_message(message) for message in messages]}
    if isinstance(prompt, str | list):
        return body | {"prompt": _halved(prompt)}
    return body


def _without(body: Json, *names: str) -> Json:
    return {key: value for key, value in body.items() if key not in names}


def _text(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _shares(before: str | tuple[int, ...], now: str | tuple[int, ...]) -> bool:
    if type(before) is not type(now) or before == now:
        return False
    shared = next(
        (i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now))
    )
    least = SHARED_CHARS if isinstance(now, str) else SHARED_IDS
    return shared >= max(least, len(now) / 2)


def _halved(prompt: Any) -> Any:
    limit = LONG_CHARS if isinstance(prompt, str) else LONG_IDS
    return prompt[len(prompt) // 2 :] if len(prompt) > limit else prompt


def _halved_message(message: Any) -> Any:
    return message | {"content": _halved(_text(message))} if len(_text(message)) > LONG_CHARS else message
