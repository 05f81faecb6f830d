"""Predicted against actual: the memory plan beside what the engine logged or exported after its start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3ctl import files
from k3ctl.errors import UsageError
from k3ctl.planning.memory import GIB, MemoryPlan
from k3ctl.signals import CACHE_INFO

MAX_BYTES = 256 << 20
"""Longest log or page that is read."""
_LOG = {
    "weights_gib": re.compile(r"Model loading took ([\d.]+) GiB"),
    "cache_gib": re.compile(r"Available KV cache memory: ([\d.]+) GiB"),
    "graphs_gib": re.compile(r"Graph capturing finished in .*? took ([\d.]+) GiB"),
    "block_tokens": re.compile(r"Setting attention block size to (\d+) tokens"),
    "cache_tokens": re.compile(r"(?:GPU|CPU) KV cache size: ([\d,]+) tokens"),
    "sequence_tokens": re.compile(r"Maximum concurrency for ([\d,]+) tokens per request"),
    "sequences": re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"),
}
_METRIC = re.compile(rf"^{CACHE_INFO}\{{(?P<labels>.*)\}}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_LABELS = {
    "block_size": "block_tokens",
    "num_gpu_blocks": "blocks",
    "kv_cache_size_tokens": "cache_tokens",
    "kv_cache_max_concurrency": "sequences",
}


@dataclass(frozen=True)
class Row:
    """One quantity, predicted and actual."""

    quantity: str
    predicted: float
    actual: float

    @property
    def difference(self) -> float:
        """Actual over predicted, minus one."""
        return self.actual / self.predicted - 1 if self.predicted else 0.0

    def json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        values = {"predicted": round(self.predicted, 2), "actual": self.actual}
        return {"quantity": self.quantity} | values | {"difference": round(self.difference, 4)}


def read(source: str) -> str:
    """The text of a file, or of an ``http(s)`` address; raises ``UsageError`` when it cannot be read."""
    if source.startswith(("http://", "https://")):
        from k3ctl.server import client

        try:
            return client.fetch(source)
        except client.HttpError as error:
            raise UsageError(f"cannot read {source}: {error.reason}", hint=error.hint) from error
    try:
        return files.read(Path(source), MAX_BYTES).decode(errors="replace")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read `{source}`: {files.reason(error)}") from error


def parse(text: str, source: str = "input") -> Mapping[str, float]:
    """Figures in an engine's log or in its ``/metrics`` page.

    Raises ``UsageError`` when there are none.
    """
    metric = _METRIC.search(text)
    if metric:
        labels = dict(_LABEL.findall(metric["labels"]))
        found = {name: _number(labels.get(label)) for label, name in _LABELS.items()}
    else:
        found = {name: _last(pattern, text) for name, pattern in _LOG.items()}
    figures = {name: value for name, value in found.items() if value is not None}
    if not figures:
        raise UsageError(
            f"{source}: neither an engine log with start-up figures nor a metrics page with them",
            hint="pass the run's engine.log, or the text of its /metrics",
        )
    return figures


def compare(plan: MemoryPlan, figures: Mapping[str, float]) -> tuple[Row, ...]:
    """A row per quantity that both sides have.

    The concurrency is compared at the length that the engine states, which may differ from the plan's own.
    """
    tokens = int(figures.get("sequence_tokens", 0)) or _stated_length(figures) or plan.sequence_tokens
    predicted = {
        "weights_gib": plan.weights.total / GIB,
        "cache_gib": plan.cache_bytes / GIB,
        "block_tokens": plan.geometry.granule_tokens,
        "blocks": plan.blocks,
        "sequences": plan.geometry.sequences(plan.blocks, tokens),
    }
    names = {
        "weights_gib": "weights per GPU, GiB (actual: with drafter)",
        "cache_gib": "cache per GPU, GiB",
        "block_tokens": "block, tokens",
        "blocks": "cache blocks",
        "sequences": f"sequences of {tokens:,} tokens",
    }
    return tuple(Row(names[key], predicted[key], figures[key]) for key in predicted if key in figures)


def _stated_length(figures: Mapping[str, float]) -> int:
    """The length behind a metrics page's concurrency: its tokens over its sequences."""
    if not figures.get("sequences") or "cache_tokens" not in figures:
        return 0
    return round(figures["cache_tokens"] / figures["sequences"])


def _last(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.findall(text)
    return _number(found[-1]) if found else None


def _number(text: str | None) -> float | None:
    try:
        return float(text.replace(",", "")) if text else None
    except ValueError:
        return None
