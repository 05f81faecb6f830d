"""What every engine test waits for and compares with."""

from __future__ import annotations

import time
from collections.abc import Callable

NOTHING: dict[str, list[str]] = {"processes": [], "segments": [], "sockets": []}


def until(true: Callable[[], object], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)
