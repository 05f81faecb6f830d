"""What the user typed after ``--set``: ``key=value`` by vLLM's own argument names, dotted for JSON fields."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from k3ctl.errors import UsageError
from k3ctl.profiles import arguments, numbers

SAME = {
    "attention_backend": "attention_config.backend",
    "kda_prefill_backend": "additional_config.kda_prefill_backend",
    "kda_decode_backend": "additional_config.kda_decode_backend",
    "spec_method": "speculative_config.method",
    "spec_model": "speculative_config.model",
    "spec_tokens": "speculative_config.num_speculative_tokens",
    "cudagraph_capture_sizes": "compilation_config.cudagraph_capture_sizes",
    "max_cudagraph_capture_size": "compilation_config.max_cudagraph_capture_size",
}
"""Arguments with a field in a JSON argument that says the same; in vLLM one of the two wins silently."""

NOT_BY_HAND = {
    "model": "a profile's `model.id`",
    "model_tag": "a profile's `model.id`",
    "config": "a profile",
    "node_rank": "`k3ctl serve` and the launch plans",
    "headless": "`k3ctl serve` and the launch plans",
}


def parse_set(entries: Iterable[str]) -> dict[str, str]:
    """``["max_num_seqs=8", …]`` as a mapping; raises ``UsageError`` when two entries disagree."""
    found: dict[str, str] = {}
    typed: dict[str, str] = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"`--set {entry}` is not `key=value`", hint="for example `--set max_num_seqs=8`")
        key = normal_key(key)
        if key in found and found[key] != value:
            raise UsageError(f"`--set {typed[key]}` and `--set {entry}` contradict each other")
        found[key], typed[key] = value, entry
    check_conflicts(found)
    return found


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Overrides in ``K3CTL_SET`` (``key=value`` words, quoted as in a shell)."""
    return parse_set(shlex.split(environ.get("K3CTL_SET", "")))


def normal_key(key: str) -> str:
    """The key with vLLM's own argument name: ``tp`` → ``tensor_parallel_size``, dashes → underscores."""
    if key.startswith("env."):
        return key
    head, dot, rest = key.strip().partition(".")
    return arguments.canonical(head) + dot + rest


def check_conflicts(overrides: Mapping[str, str]) -> None:
    """Raise ``UsageError`` naming both when two overrides set the same thing in two places."""
    for key in overrides:
        head = key.partition(".")[0]
        if head != key and head in overrides:
            raise UsageError(
                f"`{head}` and `{key}` are both set", hint=f"put the field into `{head}`, or set fields only"
            )
        twin = SAME.get(key)
        if twin and (twin in overrides or twin.partition(".")[0] in overrides):
            other = twin if twin in overrides else twin.partition(".")[0]
            raise UsageError(f"`{key}` and `{other}` both set `{twin}`", hint="keep one of them")


def parse_value(key: str, text: str) -> Any:
    """The value for an override's key, as vLLM would read it; None (typed ``none``) removes the argument."""
    head, dot, field = key.partition(".")
    if head == "env":
        arguments.check_environment([field])
        return text
    if head in NOT_BY_HAND:
        raise UsageError(f"`{head}` cannot be set by hand: it comes from {NOT_BY_HAND[head]}")
    argument = arguments.lookup(head)
    if text.strip().lower() in {"none", "null"}:
        return None
    if not dot:
        return arguments.parse_text(argument, text)
    if "json" not in argument.kind:
        raise UsageError(f"`{head}` has no fields, so `{key}` cannot be set")
    arguments.check_fields(argument, {field.partition(".")[0]: None})
    return numbers.loose_value(text)
