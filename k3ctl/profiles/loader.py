"""Find and read profiles: the ones shipped with k3ctl, then the user's own directories."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3ctl import files as file_reading
from k3ctl import yamls
from k3ctl.errors import UsageError, nearest, unknown

if TYPE_CHECKING:
    from k3ctl.profiles.schema import Profile

MAX_BYTES = 1 << 20
"""Longest profile."""


def directories() -> tuple[Path, ...]:
    """Where profiles are looked for; a later directory wins over an earlier one.

    Shipped profiles lie in the wheel, or beside the package in a source checkout. Users add
    ``$XDG_CONFIG_HOME/k3ctl/profiles`` and every directory in ``K3CTL_PROFILES`` (``:`` between them).
    """
    package = Path(__file__).resolve().parent
    shipped = package / "builtin"
    if not shipped.is_dir():
        shipped = package.parent.parent / "profiles"
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    listed = os.environ.get("K3CTL_PROFILES", "")
    return (
        shipped,
        config / "k3ctl" / "profiles",
        *(Path(entry) for entry in listed.split(os.pathsep) if entry),
    )


def files() -> dict[str, Path]:
    """Every profile file by profile name (the file's stem)."""
    return {path.stem: path for folder in directories() for path in sorted(folder.glob("*.yaml"))}


def names() -> tuple[str, ...]:
    """Names of all profiles, sorted."""
    return tuple(sorted(files()))


def load(name_or_path: str) -> Profile:
    """The profile with this name, or from this ``.yaml`` file.

    Raises ``UsageError`` for an unknown name (with the nearest known one), an unreadable file, an unknown key
    or a bad value.
    """
    path = _find(name_or_path)
    text = _read_text(path)
    own, texts = _parse(text, path), [(path.name, text)]
    parent_name = own.get("extends")
    merged, inherited = own, frozenset[str]()
    if parent_name is not None:
        parent_path = _parent_of(path, str(parent_name))
        text = _read_text(parent_path)
        texts.append((parent_path.name, text))
        parent = _inheritable(_parse(text, parent_path), str(parent_name), path)
        merged = _merge(parent, own)
        inherited = frozenset(_dotted(parent)) - frozenset(_dotted(own))
    profile = _validate(merged, path)
    if profile.name != path.stem:
        raise UsageError(f"{path}: `name: {profile.name}` differs from the file name `{path.stem}.yaml`")
    profile.mark_source(str(path), inherited, tuple(texts))
    return profile


def load_all() -> tuple[Profile, ...]:
    """Every profile, sorted by name."""
    return tuple(load(name) for name in names())


def load_readable() -> tuple[tuple[Profile, ...], tuple[str, ...]]:
    """Every profile that can be read, and one line for each that cannot: a broken file hides only itself."""
    profiles, problems = [], []
    for name in names():
        try:
            profiles.append(load(name))
        except UsageError as error:
            problems.append(f"left out: {error.message}")
    return tuple(profiles), tuple(problems)


def _find(name_or_path: str) -> Path:
    if name_or_path.endswith((".yaml", ".yml")) or os.sep in name_or_path:
        path = Path(name_or_path)
        if not path.is_file():
            raise UsageError(
                f"no profile file `{name_or_path}`", hint="`k3ctl profiles list` shows the named profiles"
            )
        return path
    known = files()
    if name_or_path not in known:
        raise unknown("profile", name_or_path, known)
    return known[name_or_path]


def _read_text(path: Path) -> str:
    return file_reading.text(path, MAX_BYTES, "profile")


def _parse(text: str, path: Path) -> dict[str, Any]:
    data = yamls.load(text, str(path))
    if not isinstance(data, dict):
        raise UsageError(f"{path}: a profile is a mapping of keys")
    return data


def _parent_of(child: Path, name: str) -> Path:
    sibling = child.parent / f"{name}.yaml"
    try:
        return sibling if sibling.is_file() else _find(name)
    except (UsageError, ValueError) as error:
        raise UsageError(f"{child}: extends `{name}`: {error}", hint=getattr(error, "hint", None)) from error


def _inheritable(parent: dict[str, Any], name: str, child: Path) -> dict[str, Any]:
    """What a profile takes over from its parent."""
    if "extends" in parent:
        raise UsageError(
            f"{child}: extends `{name}`, which itself extends `{parent['extends']}`",
            hint=f"profiles extend one level; extend `{parent['extends']}` directly",
        )
    # who measured what belongs to one profile only
    return {
        key: value
        for key, value in parent.items()
        if key not in {"name", "summary", "status", "evidence", "validation", "notes"}
    }


def _merge(parent: Mapping[str, Any], child: Mapping[str, Any]) -> dict[str, Any]:
    """The child's keys over the parent's; mappings merge, everything else replaces, and null removes."""
    merged = dict(parent)
    for key, value in child.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = _merge(old, value)
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged


def _dotted(data: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    for key, value in data.items():
        yield prefix + key
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")


def _validate(data: Mapping[str, Any], path: Path) -> Profile:
    from pydantic import ValidationError

    from k3ctl.profiles.schema import Profile

    try:
        return Profile.model_validate(data)
    except ValidationError as error:
        reasons = [_reason(item, Profile) for item in error.errors()]
        raise UsageError(f"{path}: {reasons[0]}", reasons=reasons[1:]) from error
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint) from error


def _reason(item: Any, model: Any) -> str:
    """One line for one validation error, with the nearest valid key where a key is unknown."""
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        close = nearest(str(item["loc"][-1]), _keys_at(model, item["loc"][:-1]))
        return f"unknown key `{where}`" + (f"; did you mean `{close}`?" if close else "")
    if item["type"] == "missing":
        return f"missing key `{where}`"
    return (
        f"`{where}`: {item['msg'].removeprefix('Value error, ')}"
        if where
        else item["msg"].removeprefix("Value error, ")
    )


def _keys_at(model: Any, loc: Iterable[Any]) -> list[str]:
    """The keys that the section at ``loc`` accepts."""
    for part in loc:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        model = next((c for c in candidates if hasattr(c, "model_fields")), None)
        if model is None:
            return []
    return [field.alias or name for name, field in model.model_fields.items()]
