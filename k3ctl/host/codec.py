"""JSON to dataclasses and back, by the annotations; tolerant: the reader may be older than the writer.

A missing key takes the field's default, an unknown key is ignored, and a value of the wrong type becomes a
``Refused`` (where the field may hold one) or the field's default. Every such repair is reported by path.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, Union

from k3ctl.host.values import NOT_CAPTURED, Refused

T = TypeVar("T")

_BAD = object()


class Unreadable(ValueError):
    """Data that cannot become the wanted object."""


def encode(value: Any) -> Any:
    """A dataclass tree as JSON data."""
    if isinstance(value, Refused):
        return {"na": value.na, "code": value.code}
    if dataclasses.is_dataclass(value):
        return {name: encode(getattr(value, name)) for name in _shape(type(value)).hints}
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def decode(cls: type[T], data: Any, notes: list[str], path: str = "") -> T:
    """JSON data as ``cls``; repairs are appended to ``notes``.

    Raises Unreadable when ``data`` is not an object or lacks a field that has no default.
    """
    if not isinstance(data, Mapping):
        raise Unreadable(f"{path or cls.__name__}: expected an object, got {_kind(data)}")
    values: dict[str, Any] = {}
    shape = _shape(cls)
    for name, hint in shape.hints.items():
        if name not in data:
            if name in shape.required:
                raise Unreadable(f"{path or cls.__name__}: `{name}` is missing")
            continue
        where = f"{path}.{name}" if path else name
        value = _value(hint, data[name], notes, where)
        if value is not _BAD:
            values[name] = value
            continue
        notes.append(f"{where}: expected {_describe(hint)}, got {_kind(data[name])}")
        if name in shape.required:
            raise Unreadable(f"{where}: expected {_describe(hint)}, got {_kind(data[name])}")
    return cls(**values)


def _value(hint: Any, data: Any, notes: list[str], path: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return _union(typing.get_args(hint), data, notes, path)
    if origin is tuple:
        return _sequence(typing.get_args(hint)[0], data, notes, path)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(typing.get_args(hint)[1], data, notes, path)
    if hint in (object, Any):
        return data
    if hint is Refused:
        return _refused(data)
    if dataclasses.is_dataclass(hint):
        try:
            return decode(typing.cast(type[Any], hint), data, notes, path)
        except Unreadable:
            return _BAD
    if hint is int and isinstance(data, bool):
        return _BAD
    if hint is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    return data if isinstance(data, hint) else _BAD


def _union(options: tuple[Any, ...], data: Any, notes: list[str], path: str) -> Any:
    if data is None and type(None) in options:
        return None
    if Refused in options and (refused := _refused(data)) is not _BAD:
        return refused
    for option in options:
        if option in (type(None), Refused):
            continue
        value = _value(option, data, notes, path)
        if value is not _BAD:
            return value
    if Refused in options:
        notes.append(f"{path}: value of an unknown form, got {_kind(data)}")
        return NOT_CAPTURED
    return _BAD


def _sequence(item: Any, data: Any, notes: list[str], path: str) -> Any:
    if not isinstance(data, list | tuple):
        return _BAD
    out = []
    for index, element in enumerate(data):
        value = _value(item, element, notes, f"{path}[{index}]")
        if value is _BAD:
            notes.append(f"{path}[{index}]: unreadable, left out")
        else:
            out.append(value)
    return tuple(out)


def _mapping(item: Any, data: Any, notes: list[str], path: str) -> Any:
    if not isinstance(data, Mapping):
        return _BAD
    out = {}
    for key, element in data.items():
        value = _value(item, element, notes, f"{path}.{key}")
        if value is not _BAD:
            out[str(key)] = value
    return out


def _refused(data: Any) -> Any:
    if isinstance(data, Mapping) and isinstance(data.get("na"), str):
        code = data.get("code")
        return Refused(data["na"], code if isinstance(code, int) else -1)
    return _BAD


@dataclass(frozen=True)
class _Shape:
    hints: Mapping[str, Any]
    required: frozenset[str]


_SHAPES: dict[Any, _Shape] = {}


def _shape(cls: Any) -> _Shape:
    """Field types and the names without a default; resolving annotations is slow, so once per class."""
    if cls not in _SHAPES:
        resolved = typing.get_type_hints(cls)
        fields = dataclasses.fields(cls)
        missing = dataclasses.MISSING
        _SHAPES[cls] = _Shape(
            {field.name: resolved[field.name] for field in fields},
            frozenset(f.name for f in fields if f.default is missing and f.default_factory is missing),
        )
    return _SHAPES[cls]


def _kind(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 40 else f"{text[:37]}…"


def _describe(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint))
