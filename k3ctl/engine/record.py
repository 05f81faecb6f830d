"""What a run was started with, kept in ``run.json`` at launch.

Everything that is later said about a run comes from here: its command line is not read back, and its profile's file
may change or vanish. Values under names that announce a secret are never written; ``***`` stands in their place.

``launch`` of ``run.json``:

    model     what is served: a repository id or a directory
    args      vLLM's arguments by its own names, those that k3ctl adds included
    env       variables that k3ctl set
    origins   dotted key → [source, detail]; keys of variables start with ``env.``
    profile   {name, file, data, texts}: the profile as it was understood, and the texts that it was read from
              (its own, then its parent's), each {name, sha256, text}
    gpus      [{index, name, uuid}] that the engine could see; null when nobody looked
    versions  k3ctl, python, vllm, torch, driver
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from k3ctl import __version__, redact
from k3ctl.engine.rundir import Run
from k3ctl.errors import UsageError

if TYPE_CHECKING:
    from k3ctl.engine.preflight import Interpreter
    from k3ctl.profiles.resolve import ResolvedConfig
    from k3ctl.profiles.schema import Profile

ADDED = ["default", "k3ctl serve"]


def made(
    resolved: ResolvedConfig,
    args: Mapping[str, Any],
    env: Mapping[str, str],
    *,
    python: Interpreter,
    typed: Mapping[str, str] | None = None,
    gpus: Sequence[Mapping[str, Any]] | None = None,
    driver: str = "",
) -> dict[str, Any]:
    """The record of a launch: ``args`` and ``env`` as the engine gets them, ``typed`` options of ``serve`` by key."""
    profile = resolved.profile
    data = profile.model_dump(mode="json", by_alias=True)
    secrets = {value for source in (data, args, env) for value in redact.secrets(source)}
    origins = {
        key: [origin.source, origin.detail]
        for key, origin in resolved.origins.items()
        if not _gone(key, args, env)
    }
    origins |= {name: ADDED for name in args if not _has(origins, name)}
    origins |= {f"env.{name}": ADDED for name in env if f"env.{name}" not in origins}
    origins |= {name: ["flag", option] for name, option in (typed or {}).items()}
    return {
        "model": resolved.model,
        "args": redact.PLAIN.value(args),
        "env": redact.PLAIN.value(env),
        "origins": origins,
        "profile": {
            "name": profile.name,
            "file": profile.file,
            "data": redact.PLAIN.value(data),
            "texts": [_text(name, text, secrets) for name, text in profile.texts],
        },
        "gpus": None if gpus is None else [dict(gpu) for gpu in gpus],
        "versions": {
            "k3ctl": __version__,
            "python": ".".join(map(str, python.python)),
            "vllm": python.vllm,
            "torch": python.torch,
        }
        | ({"driver": driver} if driver else {}),
    }


def config(run: Run) -> ResolvedConfig | None:
    """The configuration that the run was started with; None for a run whose record is missing or damaged."""
    from k3ctl.profiles.resolve import Origin, ResolvedConfig

    kept = run.launch
    try:
        profile = _profile(kept["profile"]["data"])
        profile.mark_source(str(kept["profile"]["file"]), frozenset(), tuple(profile_texts(run).items()))
        return ResolvedConfig(
            profile=profile,
            model=str(kept["model"]),
            args=dict(kept["args"]),
            env=dict(kept["env"]),
            origins={key: Origin(*origin) for key, origin in kept["origins"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, UsageError):
        return None


def _profile(data: Mapping[str, Any]) -> Profile:
    """The profile that was understood then. How far it was trusted is no reason not to read it.

    Raises:
        ValueError: it is no profile.
    """
    from k3ctl.profiles.schema import Profile

    try:
        return Profile.model_validate(data)
    except (ValueError, UsageError):
        untrusted = {"status": "untested", "evidence": (), "validation": None}
        return Profile.model_validate({**data, **untrusted})


def profile_texts(run: Run) -> dict[str, str]:
    """The texts of the profile that ran by file name, its own first; empty when they were not kept."""
    kept = run.launch.get("profile")
    found = kept.get("texts") if isinstance(kept, Mapping) else None
    entries = [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []
    return {str(entry["name"]): str(entry["text"]) for entry in entries if {"name", "text"} <= entry.keys()}


def _text(name: str, text: str, secrets: set[str]) -> dict[str, str]:
    """The digest is that of the file as it was read, so that it can be compared with the file."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, redact.MASK)
    return {"name": name, "sha256": digest, "text": redact.PLAIN.shown(text)}


def _gone(key: str, args: Mapping[str, Any], env: Mapping[str, str]) -> bool:
    return (
        key.removeprefix("env.") not in env
        if key.startswith("env.")
        else key.split(".", maxsplit=1)[0] not in args
    )


def _has(origins: Iterable[str], name: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for key in origins)
