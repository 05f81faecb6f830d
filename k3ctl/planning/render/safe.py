"""What may stand in a rendered file: every name checked, no line breaks, no keys.

Values are quoted where they are written; this module refuses what no quoting makes safe in all of shell, YAML, systemd
units and Kubernetes names, and takes the keys out of a configuration, so that no file holds one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from k3ctl import redact
from k3ctl.engine.rundir import LOOPBACK
from k3ctl.errors import UsageError
from k3ctl.profiles.resolve import ResolvedConfig

KEY = "VLLM_API_KEY"
ARGUMENTS = {"api_key": KEY, "hf_token": "HF_TOKEN"}
"""Arguments that are keys, and the variables that vLLM reads instead."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH = re.compile(r"/[A-Za-z0-9._/@+:=-]*")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@+:-]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def check(resolved: ResolvedConfig, directory: str, image: str, *, kubernetes: bool) -> None:
    """Refuse names, paths and texts that could become something else in a file. Raises ``UsageError``."""
    name = resolved.profile.name
    _require(_NAME, name, "the profile's name")
    if kubernetes:
        _require(_LABEL, name, "the profile's name, which Kubernetes takes for its objects,")
    _require(_PATH, directory, "the directory")
    _require(_IMAGE, image, "the image")
    for key in resolved.env:
        _require(_VARIABLE, key, "the name of a variable")
    texts = {"summary": resolved.profile.summary, "status": resolved.profile.status, "model": resolved.model}
    for where, text in _texts({**texts, "args": resolved.args, "env": resolved.env}):
        if _CONTROL.search(text):
            raise UsageError(
                f"`{where}` holds a line break or a control character",
                hint=repr(text[:60]),
            )


def without_keys(resolved: ResolvedConfig) -> ResolvedConfig:
    """The configuration without its keys."""
    args = {name: value for name, value in resolved.args.items() if name not in ARGUMENTS}
    env = {name: value for name, value in resolved.env.items() if not redact.secret_name(name)}
    hidden = redact.PLAIN.value(args)
    for name, value in args.items():
        if hidden[name] != (list(value) if isinstance(value, tuple) else value):
            raise UsageError(
                f"`{name}` holds a secret, which no file may show",
                hint="give it in a variable",
            )
    return replace(resolved, args=args, env=env)


def keys(resolved: ResolvedConfig, *, open_: bool = False) -> tuple[str, ...]:
    """Variables that must be set where the files are used: configured keys, and the API key of an open server."""
    found = [
        variable for name, variable in ARGUMENTS.items() if isinstance(resolved.args.get(name), str | list)
    ]
    found += [name for name in resolved.env if redact.secret_name(name)]
    if open_ or str(resolved.args.get("host")) not in LOOPBACK:
        found.append(KEY)
    return tuple(dict.fromkeys(found))


def demands(names: tuple[str, ...]) -> str:
    """Shell lines that stop a start without its keys."""
    return "".join(f': "${{{name}:?give the key in the environment}}"\nexport {name}\n' for name in names)


def _require(pattern: re.Pattern[str], value: str, what: str) -> None:
    if not pattern.fullmatch(value) or ".." in value:
        raise UsageError(
            f"{what} cannot stand in a rendered file: {value!r}", hint=f"it must match {pattern.pattern}"
        )


def _texts(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield where, str(key)
            yield from _texts(inner, f"{where}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, where)
    elif isinstance(value, str):
        yield where, value
