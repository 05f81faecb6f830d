"""One look at the server: the numbers of ``/metrics`` and ``/k3/witness`` for a benchmark.

A ``Sample`` holds counters, never rates; every rate is a difference of two samples. Missing series are
None, so that "not exported" never reads as zero.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from k3ctl.engine.client import Client
from k3ctl.errors import EngineError


@dataclass(frozen=True)
class Engagement:
    """Steps since the engine started, summed over workers (``k3.witness/1``)."""

    specialized: int
    decode_and_mixed: int
    reasons: Mapping[str, int]
    started_at: float
    decode_backend: str


@dataclass(frozen=True)
class Sample:
    """Server counters at one moment. ``ts`` unix seconds, ``mono`` a clock that never jumps, in seconds."""

    ts: float
    mono: float
    running: float | None = None
    waiting: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    accepted_per_position: tuple[float, ...] = ()
    preemptions: float | None = None
    process_start: float | None = None
    engagement: Engagement | None = None

    def as_json(self) -> str:
        """One JSON line."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Sample:
        """Rebuild from ``as_json``'s object."""
        values = dict(data)
        values["accepted_per_position"] = tuple(values.get("accepted_per_position") or ())
        if values.get("engagement"):
            values["engagement"] = Engagement(**values["engagement"])
        return cls(**values)


SERIES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "prefix_queries": "vllm:prefix_cache_queries_total",
    "prefix_hits": "vllm:prefix_cache_hits_total",
    "drafts": "vllm:spec_decode_num_drafts_total",
    "draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
    "preemptions": "vllm:num_preemptions_total",
    "process_start": "process_start_time_seconds",
}
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


def sample_metrics(text: str, *, ts: float, mono: float, witness: Mapping[str, Any] | None = None) -> Sample:
    """Read a Prometheus page; counters are summed over engines."""
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    for name, labels, value in _series(text):
        sums[name] = sums.get(name, 0.0) + value
        if name == PER_POSITION and labels.get("position", "").isdigit():
            index = int(labels["position"])
            positions[index] = positions.get(index, 0.0) + value
    return Sample(
        ts=ts,
        mono=mono,
        accepted_per_position=tuple(positions[index] for index in sorted(positions)),
        engagement=engagement(witness) if witness else None,
        **{field: sums.get(series) for field, series in SERIES.items()},
    )


def server_facts(text: str, witness: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the server itself says about its deployment: ``prefix_caching``, ``decode_backend``, ``vllm``."""
    facts: dict[str, Any] = {}
    for name, labels, _ in _series(text):
        if name == "vllm:cache_config_info" and "enable_prefix_caching" in labels:
            facts["prefix_caching"] = labels["enable_prefix_caching"] == "True"
    pages = (witness or {}).get("workers") or []
    if pages:
        facts["decode_backend"] = pages[0].get("decode_backend")
        facts["vllm"] = pages[0].get("vllm")
    return facts


def engagement(table: Mapping[str, Any]) -> Engagement | None:
    """Sum the witness pages; None when no worker has written one."""
    pages = table.get("workers") or []
    if not pages:
        return None
    specialized = total = 0
    reasons: dict[str, int] = {}
    for step in (step for page in pages for step in page.get("steps", [])):
        if step.get("kind") not in ("decode", "mixed"):
            continue
        count = int(step.get("steps", 0))
        total += count
        if step.get("path") == "specialized":
            specialized += count
        else:
            reason = step.get("reason") or "unknown"
            reasons[reason] = reasons.get(reason, 0) + count
    return Engagement(
        specialized=specialized,
        decode_and_mixed=total,
        reasons=reasons,
        started_at=max(float(page.get("started_at", 0.0)) for page in pages),
        decode_backend=str(pages[0].get("decode_backend", "auto")),
    )


def fetch(client: Client) -> tuple[str | None, dict[str, Any] | None]:
    """Raw ``/metrics`` text and ``/k3/witness`` JSON; None for a page that the server does not have."""
    metrics: str | None
    try:
        metrics = client.text("/metrics", timeout_s=5)
    except EngineError:
        metrics = None
    try:
        witness = client.json("/k3/witness", timeout_s=5)
    except EngineError:
        witness = None
    return metrics, witness if isinstance(witness, dict) else None


def take(client: Client) -> Sample | None:
    """One sample now, or None when the server does not answer with metrics."""
    metrics, witness = fetch(client)
    if metrics is None:
        return None
    return sample_metrics(metrics, ts=time.time(), mono=time.monotonic(), witness=witness)


def _series(text: str) -> list[tuple[str, Mapping[str, str], float]]:
    from prometheus_client.parser import text_string_to_metric_families

    try:
        families = list(text_string_to_metric_families(text))
    except ValueError:  # a page cut off half-way
        return []
    return [
        (sample.name, sample.labels, float(sample.value)) for family in families for sample in family.samples
    ]
