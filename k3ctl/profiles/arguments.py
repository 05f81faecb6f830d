"""The ``vllm serve`` arguments that k3ctl knows: names, kinds, choices, and the fields of the JSON ones.

The table is generated from vLLM itself (``scripts/dump_vllm_arguments.py``); a test compares the two where
vLLM is installed. It lets a misspelt argument be named before an engine is started.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, cast

from k3ctl.errors import UsageError, nearest, unknown
from k3ctl.profiles import numbers

ADDITIONAL_CONFIG_KEYS = {
    "decode_backend": ("auto", "latency_specialized"),
    "mla_core": ("auto", "tokenspeed", "trtllm"),
    "kda_prefill_backend": ("auto", "triton", "flashkda", "flashinfer"),
    "kda_decode_backend": ("auto", "native", "flashinfer", "triton"),
    "kda_spec_decode_backend": ("auto", "native", "flashinfer"),
    "k3_decode": ("stock", "auto", "hopper"),
    "k3_slots": (),
}
"""The ``--additional-config`` keys that Kimi K3 reads in vLLM 0.33.0, and those of the runtime (``k3_*``), with their
values (none: any). Any other key is ignored by both.
"""


@dataclass(frozen=True)
class Argument:
    """One argument of ``vllm serve``."""

    name: str
    kind: str
    """bool, switch, str, int, float, human_int, human_int_or_auto, json or json_or_str."""
    many: bool = False
    choices: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    short: str = ""

    @property
    def option(self) -> str:
        """The long option, for example ``--max-num-seqs``."""
        return "--" + self.name.replace("_", "-")


@functools.cache
def _table() -> Mapping[str, Any]:
    text = resources.files("k3ctl.profiles").joinpath("vllm_arguments.json").read_text()
    return cast(Mapping[str, Any], json.loads(text))


@functools.cache
def known() -> Mapping[str, Argument]:
    """Every known argument by vLLM's own name."""
    return {
        name: Argument(
            name,
            row["kind"],
            row.get("many", False),
            tuple(row.get("choices", ())),
            tuple(row.get("fields", ())),
            row.get("short", ""),
        )
        for name, row in _table()["arguments"].items()
    }


def table_version() -> str:
    """The vLLM version that the table was generated from."""
    return str(_table()["vllm"])


def environment_names() -> frozenset[str]:
    """The ``VLLM_*`` environment variables that vLLM reads."""
    return frozenset(_table()["environment"])


def canonical(name: str) -> str:
    """vLLM's own name for an argument typed with dashes, or by its short form (``tp``)."""
    plain = name.strip().lstrip("-").replace("-", "_")
    if plain in known():
        return plain
    return next((argument.name for argument in known().values() if argument.short == plain), plain)


def lookup(name: str) -> Argument:
    """The argument called ``name``; raises ``UsageError`` with the nearest known name."""
    argument = known().get(name)
    if argument is None:
        close = nearest(name, known())
        hint = f"did you mean `{close}`?" if close else "`vllm serve --help=all` lists every argument"
        raise UsageError(f"unknown vLLM argument `{name}` (vLLM {table_version()})", hint=hint)
    return argument


def check_environment(names: Iterable[str]) -> None:
    """Refuse a ``VLLM_*`` variable that vLLM does not read: it would be ignored."""
    for name in names:
        if name.startswith("VLLM_") and name not in environment_names():
            raise unknown("environment variable", name, environment_names())


def parse_text(argument: Argument, text: str) -> Any:
    """The value that vLLM would read from ``text`` for this argument."""
    if argument.many:
        return [_checked(argument, _read(argument, part)) for part in text.replace(",", " ").split()]
    return _checked(argument, _read(argument, text))


def check_value(name: str, value: Any) -> Any:
    """Check (and normalise) a value from YAML: text goes through vLLM's own rules."""
    argument = lookup(name)
    if isinstance(value, str):
        return parse_text(argument, value)
    if argument.many:
        items = value if isinstance(value, list) else [value]
        return [_checked(argument, _read(argument, i) if isinstance(i, str) else i) for i in items]
    return _checked(argument, value)


def _read(argument: Argument, text: str) -> Any:
    try:
        return _READERS.get(argument.kind, str)(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"`{argument.name}`: `{text}` is not valid JSON ({error.msg} at column {error.colno})"
        ) from error
    except ValueError as error:
        wanted = _WANTED.get(argument.kind, argument.kind)
        detail = f" ({error})" if "decimals" in str(error) else ""
        raise UsageError(f"`{argument.name}` takes {wanted}, got `{text}`{detail}") from error


def _read_bool(text: str) -> bool:
    values = {
        "true": True,
        "1": True,
        "yes": True,
        "on": True,
        "false": False,
        "0": False,
        "no": False,
        "off": False,
    }
    if text.strip().lower() not in values:
        raise ValueError(text)
    return values[text.strip().lower()]


def _read_object(text: str) -> dict[str, Any]:
    value = numbers.json_value(text)
    if not isinstance(value, dict):
        raise ValueError(text)  # noqa: TRY004 - the text is wrong, as for every other kind
    return value


def _read_length(text: str) -> int | str:
    return "auto" if text.strip().lower() in {"auto", "-1"} else numbers.human_int(text)


def _read_object_or_name(text: str) -> dict[str, Any] | str:
    return _read_object(text) if text.lstrip().startswith("{") else text


_READERS: Mapping[str, Callable[[str], Any]] = {
    "bool": _read_bool,
    "switch": _read_bool,
    "int": int,
    "float": float,
    "human_int": numbers.human_int,
    "human_int_or_auto": _read_length,
    "json": _read_object,
    "json_or_str": _read_object_or_name,
}
_WANTED = {
    "bool": "true or false",
    "switch": "true or false",
    "int": "a plain integer",
    "float": "a number",
    "human_int": "an integer such as 16384, 16k or 1M",
    "human_int_or_auto": "`auto` or an integer such as 16384, 16k or 1M",
    "json": "a JSON object",
    "json_or_str": "a JSON object or a name",
}
_TYPES: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "switch": (bool,),
    "str": (str, int, float),
    "int": (int,),
    "float": (int, float),
    "human_int": (int,),
    "human_int_or_auto": (int, str),
    "json": (dict,),
    "json_or_str": (dict, str),
}


def _checked(argument: Argument, value: Any) -> Any:
    types = _TYPES[argument.kind]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise UsageError(f"`{argument.name}` takes {_WANTED.get(argument.kind, 'text')}, got `{value!r}`")
    if argument.choices and str(value).replace("-", "_") not in {
        c.replace("-", "_") for c in argument.choices
    }:
        raise unknown(f"value of `{argument.name}`", str(value), argument.choices)
    check_fields(argument, value)
    return value


def check_fields(argument: Argument, value: Any) -> None:
    """Refuse unknown fields of a JSON argument whose fields are known."""
    if isinstance(value, dict) and argument.fields:
        for key in value:
            if key not in argument.fields:
                raise unknown(f"field of `{argument.name}`", key, argument.fields)
