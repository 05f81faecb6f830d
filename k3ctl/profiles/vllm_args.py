"""A resolved configuration as vLLM takes it: an argv, or the mapping of a ``vllm serve --config`` file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from k3ctl.profiles import arguments
from k3ctl.profiles.resolve import ResolvedConfig


def argv(resolved: ResolvedConfig) -> list[str]:
    """What follows ``vllm serve``: the model, then one option per argument, in the configuration's order."""
    words = [resolved.model]
    for name, value in resolved.args.items():
        words += option(name, value)
    return words


def option(name: str, value: Any) -> list[str]:
    """One argument as command-line words; a false switch gives none, a false boolean its ``--no-`` form."""
    argument = arguments.lookup(name)
    if argument.kind == "switch":
        return [argument.option] if value else []
    if argument.kind == "bool":
        return [argument.option if value else argument.option.replace("--", "--no-", 1)]
    if argument.many:
        return [argument.option, *(str(item) for item in value)]
    if isinstance(value, Mapping):
        return [argument.option, json.dumps(value, separators=(",", ":"))]
    return [argument.option, str(value)]


def config_file(resolved: ResolvedConfig) -> dict[str, Any]:
    """The mapping for ``vllm serve --config FILE``: the long option names without dashes, model included."""
    return {"model": resolved.model} | {
        name.replace("_", "-"): value for name, value in resolved.args.items()
    }
