"""Question sets that need no network: generators with seeds (here), and the task files of the harness (``tasks``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from k3ctl.validate.sets import arithmetic, needles

Rows = list[dict[str, Any]]
GENERATED: Mapping[str, Callable[[int, int], Rows]] = {
    "arithmetic": arithmetic.questions,
    "needles": needles.questions,
}
"""Set → (count, seed) → questions, each with ``question`` and ``answer``."""
