"""One profile plus overrides → one resolved configuration, in which every value remembers its origin.

Precedence, strongest first: typed flag, environment of the caller, profile, default.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from k3ctl.profiles import overrides as typed
from k3ctl.profiles.schema import Profile

MODEL_DIR = "MODEL_DIR"
"""Stands for the directory of a generated model until ``with_model_path`` fills it in."""

DEFAULTS: Mapping[str, Any] = {"host": "127.0.0.1", "port": 8000}
"""Arguments that k3ctl sets when neither the profile nor the user does."""


@dataclass(frozen=True)
class Origin:
    """Where a value comes from: ``flag``, ``env``, ``profile`` or ``default``, and the place in it."""

    source: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.source} ({self.detail})" if self.detail else self.source


@dataclass(frozen=True)
class ResolvedConfig:
    """What vLLM is started with. ``args`` uses vLLM's own names; ``origins`` has a key per (dotted) value."""

    profile: Profile
    model: str
    args: Mapping[str, Any]
    env: Mapping[str, str]
    origins: Mapping[str, Origin] = field(default_factory=dict)

    def with_model_path(self, path: str) -> ResolvedConfig:
        """The same configuration serving the model in ``path``."""
        return replace(self, model=str(path))

    def insists_on(self, variable: str) -> bool:
        """Whether the environment variable was typed or exported: a host's own setting then gives way.

        A variable that only the profile sets gives way to the host's, as it does to the caller's environment.
        """
        origin = self.origins.get(f"env.{variable}")
        return origin is not None and origin.source in ("flag", "env")

    @property
    def needs_generated_model(self) -> bool:
        """Whether the model has to be made before the start."""
        return self.profile.model.generated is not None and self.model == MODEL_DIR

    def get(self, key: str, default: Any = None) -> Any:
        """A value by dotted key (``speculative_config.num_speculative_tokens``), or ``default``."""
        value: Any = self.args
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]
        return value


def resolve(
    profile: Profile,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ResolvedConfig:
    """Resolve ``profile`` with the typed ``overrides`` (``key=value`` pairs, values as text).

    ``environ`` is the caller's environment: ``K3CTL_SET`` in it holds further overrides, and a variable that
    the profile also sets wins over the profile. Raises ``UsageError`` for an unknown argument, a value that
    vLLM would refuse, or two overrides for the same thing.
    """
    environ = environ or {}
    builder = _Builder(profile)
    builder.profile_values()
    for name in [name for name in builder.env if name in environ and environ[name] != builder.env[name]]:
        builder.set(f"env.{name}", environ[name], Origin("env", name))
    flags = {typed.normal_key(key): text for key, text in (overrides or {}).items()}
    from_env = typed.from_environment(environ)
    typed.check_conflicts(flags)
    for key, text in from_env.items():
        builder.override(key, text, Origin("env", "K3CTL_SET"))
    for key, text in flags.items():
        builder.override(key, text, Origin("flag", f"--set {key}"))
    for key, value in DEFAULTS.items():
        if key not in builder.args:
            builder.set(key, value, Origin("default", "k3ctl"))
    model = profile.model.id or MODEL_DIR
    return ResolvedConfig(profile, model, builder.args, builder.env, builder.origins)


class _Builder:
    """Collects arguments, environment and origins; later values win."""

    def __init__(self, profile: Profile):
        self.profile = profile
        self.args: dict[str, Any] = {}
        self.env: dict[str, str] = {}
        self.origins: dict[str, Origin] = {}

    def profile_values(self) -> None:
        for key, place, value in _profile_values(self.profile):
            self.set(key, value, Origin("profile", f"{self.profile.stated_in(place)}: {place}"))

    def override(self, key: str, text: str, origin: Origin) -> None:
        twin = typed.SAME.get(key)
        if twin:
            self._drop(twin)
        for name, other in typed.SAME.items():
            if other == key:
                self._drop(name)
        value = typed.parse_value(key, text)
        if value is None:
            self._drop(key)
        else:
            self.set(key, value, origin)

    def set(self, key: str, value: Any, origin: Origin) -> None:
        if key.startswith("env."):
            self.env[key.removeprefix("env.")] = str(value)
            self.origins[key] = origin
            return
        *parents, last = key.split(".")
        target = self.args
        for part in parents:
            inner = target.get(part)
            target[part] = inner if isinstance(inner, dict) else {}
            target = target[part]
        self._forget(key)
        target[last] = copy.deepcopy(value)
        for leaf in _leaves(key, value):
            self.origins[leaf] = origin

    def _drop(self, key: str) -> None:
        *parents, last = key.split(".")
        target: Any = self.args
        for part in parents:
            target = target.get(part, {})
        target.pop(last, None)
        self._forget(key)

    def _forget(self, key: str) -> None:
        for known in [known for known in self.origins if known == key or known.startswith(key + ".")]:
            del self.origins[known]


def _profile_values(profile: Profile) -> Iterator[tuple[str, str, Any]]:
    """(vLLM key, place in the profile, value) for everything the profile states."""
    model = profile.model
    if model.served_name:
        yield "served_model_name", "model.served_name", [model.served_name]
    for key in ("revision", "tokenizer"):
        if getattr(model, key):
            yield key, f"model.{key}", getattr(model, key)
    for name, value in profile.serve.args.items():
        yield name, f"serve.args.{name}", value
    if profile.requires.nodes > 1:
        yield "nnodes", "requires.nodes", profile.requires.nodes
    yield from _decode_values(profile)
    for name, text in profile.serve.env.items():
        yield f"env.{name}", f"serve.env.{name}", text


def _decode_values(profile: Profile) -> Iterator[tuple[str, str, Any]]:
    decode = profile.decode
    limits = {
        "decode_context_parallel_size": decode.decode_context_parallel_size,
        "max_num_seqs": decode.max_num_seqs,
        "max_num_batched_tokens": decode.max_num_batched_tokens,
    }
    for key, limit in limits.items():
        if limit is not None:
            yield key, f"decode.{key}", limit
    if decode.speculator is not None:
        if profile.model.drafter:
            yield "speculative_config.model", "model.drafter", profile.model.drafter
        for name, value in decode.speculator.items():
            yield f"speculative_config.{name}", f"decode.speculator.{name}", value
    if decode.backend != "auto":
        own = decode.backend == "hopper"  # the runtime's switch: vLLM refuses values that it does not know
        key = "k3_decode" if own else "decode_backend"
        yield f"additional_config.{key}", "decode.backend", decode.backend


def _leaves(key: str, value: Any) -> Iterator[str]:
    """The dotted keys of every value inside a mapping; ``key`` itself for anything else."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    else:
        yield key
