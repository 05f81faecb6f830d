"""A value that may not be there, with the reason why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Never, TypeVar, Union

NEVER_ASKED = -1
ANSWERS = (3, 13)
"""NVML_ERROR_NOT_SUPPORTED and FUNCTION_NOT_FOUND: the GPU or the driver has no such thing, which is an answer."""


@dataclass(frozen=True)
class Refused:
    """A missing value: ``na`` is NVML's error name, ``code`` its nvmlReturn_t (−1: NVML was never asked)."""

    na: str
    code: int = NEVER_ASKED

    def __bool__(self) -> Literal[False]:
        return False

    def __iter__(self) -> Iterator[Never]:
        """Nothing: a list that was not read is walked like an empty one, and is still told apart from it."""
        return iter(())

    def __len__(self) -> int:
        return 0

    @property
    def unread(self) -> bool:
        """There is no answer: never asked, no permission, or a call that failed."""
        return self.code not in ANSWERS


T = TypeVar("T")
Maybe = Union[T, Refused]  # noqa: UP007 (a generic alias cannot be written with `|` on Python 3.11)

NOT_CAPTURED = Refused("NotCaptured")
"""The source (a text capture, an older snapshot) does not carry this value."""


def unread(value: object) -> bool:
    """Whether ``value`` stands for something that was not read."""
    return value is None or (isinstance(value, Refused) and value.unread)


def known(value: Maybe[T] | None, default: T) -> T:
    """``value``, or ``default`` where it was refused or never read."""
    return default if value is None or isinstance(value, Refused) else value
