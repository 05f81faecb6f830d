"""Numbers as vLLM reads them on its command line: ``16k`` is 16,000 and ``16K`` is 16,384."""

from __future__ import annotations

import json
import re
from typing import Any

_SUFFIXED = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_STRING = re.compile(r'("(?:[^"\\]|\\.)*")')
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4}


def human_int(text: str) -> int:
    """An integer with an optional suffix: lower case counts in thousands, upper case in 1024s.

    Raises ``ValueError`` for anything else, and for a decimal with an upper-case suffix (vLLM refuses it).
    """
    text = text.strip()
    found = _SUFFIXED.fullmatch(text)
    if not found:
        return int(text)
    number, suffix = found.groups()
    power = _POWER[suffix.lower()]
    if suffix.islower():
        return int(float(number) * float(1000**power))
    if "." in number:
        raise ValueError(
            f"`{text}`: decimals do not go with `{suffix}`; `{number}{suffix.lower()}` counts in 1000s"
        )
    return int(number) * int(1024**power)


def json_value(text: str) -> Any:
    """A JSON text in which bare numbers may carry a suffix, as vLLM's JSON arguments accept them."""
    parts = _STRING.split(text)
    parts[::2] = [
        re.sub(rf"\b{_SUFFIXED.pattern}\b", lambda m: str(human_int(m.group())), p) for p in parts[::2]
    ]
    return json.loads("".join(parts))


def loose_value(text: str) -> Any:
    """The value of one field inside a JSON argument: JSON, a suffixed number, else the text itself."""
    try:
        return json_value(text)
    except ValueError:
        return text
