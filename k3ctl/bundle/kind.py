"""What tells one kind of bundle from another; everything else about a bundle is the same for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Kind:
    """A kind of bundle. ``summarize``: raw directory → summary; ``validity``: summary → status, reasons, flags."""

    schema: str
    summarize: Callable[[Path], Mapping[str, Any]]
    validity: Callable[[Mapping[str, Any]], Mapping[str, Any]]
