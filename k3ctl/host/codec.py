"""JSON to dataclasses and back, by the annotations; tolerant: the reader may be older than the writer.

A missing key takes the field's default, an unknown key is ignored, and a value of the wrong type becomes a
``Refused`` (where the field may hold one) or the field's default. Every such repair is reported by path.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
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
    for name, read in shape.readers.items():
        if name not in data:
            if name in shape.required:
                raise Unreadable(f"{path or cls.__name__}: `{name}` is missing")
            continue
        where = f"{path}.{name}" if path else name
        value = read(data[name], notes, where)
        if value is not _BAD:
            values[name] = value
            continue
        note = f"{where}: expected {_describe(shape.hints[name])}, got {_kind(data[name])}"
        notes.append(note)
        if name in shape.required:
            raise Unreadable(note)
    return cls(**values)


Reader = Callable[[Any, list[str], str], Any]
"""JSON data, the notes, and where it stands, as a value of one type; ``_BAD`` when it cannot be one."""


def _reader(hint: Any) -> Reader:
    """How to read a value of this type. Looking at a type is slow, so a class does it once for each field."""
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return _union(typing.get_args(hint))
    if origin is tuple:
        items = typing.get_args(hint)
        return _sequence(_reader(items[0]), None if Ellipsis in items else len(items))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_reader(typing.get_args(hint)[1]))
    if hint in (object, Any):
        return lambda data, *_: data
    if hint is Refused:
        return lambda data, *_: _refused(data)
    if dataclasses.is_dataclass(hint):
        return _object(typing.cast(type[Any], hint))
    return _plain(hint)


def _plain(cls: Any) -> Reader:
    def read(data: Any, *_: Any) -> Any:
        if isinstance(data, bool) and cls is not bool:
            return _BAD
        if cls is float and isinstance(data, int):
            return float(data) if abs(data) < 1 << 1000 else _BAD
        return data if isinstance(data, cls) else _BAD

    return read


def _object(cls: type[Any]) -> Reader:
    def read(data: Any, notes: list[str], path: str) -> Any:
        try:
            return decode(cls, data, notes, path)
        except Unreadable:
            return _BAD

    return read


def _union(options: tuple[Any, ...]) -> Reader:
    may_be_none, may_be_refused = type(None) in options, Refused in options
    readers = [_reader(option) for option in options if option not in (type(None), Refused)]

    def read(data: Any, notes: list[str], path: str) -> Any:
        if data is None and may_be_none:
            return None
        if may_be_refused and (refused := _refused(data)) is not _BAD:
            return refused
        for option in readers:
            value = option(data, notes, path)
            if value is not _BAD:
                return value
        if may_be_refused:
            notes.append(f"{path}: value of an unknown form, got {_kind(data)}")
            return NOT_CAPTURED
        return _BAD

    return read


def _sequence(item: Reader, length: int | None) -> Reader:
    def read(data: Any, notes: list[str], path: str) -> Any:
        if not isinstance(data, list | tuple):
            return _BAD
        out = []
        for index, element in enumerate(data):
            where = f"{path}[{index}]"
            value = item(element, notes, where)
            if value is _BAD:
                notes.append(f"{where}: unreadable, left out")
            else:
                out.append(value)
        return tuple(out) if length in (None, len(out)) else _BAD

    return read


def _mapping(item: Reader) -> Reader:
    def read(data: Any, notes: list[str], path: str) -> Any:
        if not isinstance(data, Mapping):
            return _BAD
        values = {str(key): item(element, notes, f"{path}.{key}") for key, element in data.items()}
        return {key: value for key, value in values.items() if value is not _BAD}

    return read


def _refused(data: Any) -> Any:
    if isinstance(data, dict) and isinstance(data.get("na"), str):
        code = data.get("code")
        return Refused(data["na"], code if isinstance(code, int) else -1)
    return _BAD


@dataclass(frozen=True)
class _Shape:
    hints: Mapping[str, Any]
    readers: Mapping[str, Reader]
    required: frozenset[str]


_SHAPES: dict[Any, _Shape] = {}


def _shape(cls: Any) -> _Shape:
    """Field types and the names without a default; resolving annotations is slow, so once per class."""
    if cls not in _SHAPES:
        resolved = typing.get_type_hints(cls)
        fields = dataclasses.fields(cls)
        missing = dataclasses.MISSING
        hints = {field.name: resolved[field.name] for field in fields}
        _SHAPES[cls] = _Shape(
            hints,
            {name: _reader(hint) for name, hint in hints.items()},
            frozenset(f.name for f in fields if f.default is missing and f.default_factory is missing),
        )
    return _SHAPES[cls]


def _kind(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 40 else f"{text[:37]}…"


def _describe(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint))
