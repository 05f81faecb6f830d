"""A value that may not be there, with the reason why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar, Union

NEVER_ASKED = -1


@dataclass(frozen=True)
class Refused:
    """A missing value: ``na`` is NVML's error name, ``code`` its nvmlReturn_t (−1: NVML was never asked)."""

    na: str
    code: int = NEVER_ASKED

    def __bool__(self) -> Literal[False]:
        return False


T = TypeVar("T")
Maybe = Union[T, Refused]  # noqa: UP007 (a generic alias cannot be written with `|` on Python 3.11)

NOT_CAPTURED = Refused("NotCaptured")
"""The source (a text capture, an older snapshot) does not carry this value."""


def known(value: Maybe[T] | None, default: T) -> T:
    """``value``, or ``default`` where it was refused or never read."""
    return default if value is None or isinstance(value, Refused) else value
