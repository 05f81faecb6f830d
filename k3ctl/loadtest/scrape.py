"""One look at the server: the numbers of ``/metrics`` and ``/k3/witness`` for a benchmark.

A ``Sample`` holds counters, never rates; every rate is a difference of two samples. Missing series are None,
so that "not exported" never reads as zero.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from k3ctl import signals
from k3ctl.deployment import CPU
from k3ctl.errors import EngineError
from k3ctl.server import witness as pages
from k3ctl.server.client import Client
from k3ctl.server.prometheus import Page, PageError, parse


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
    tpot_sum_s: float | None = None
    tpot_count: float | None = None
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
    "running": signals.RUNNING,
    "waiting": signals.WAITING,
    "prompt_tokens": signals.PROMPT_TOKENS,
    "generation_tokens": signals.GENERATION_TOKENS,
    "prefix_queries": signals.PREFIX_QUERIES,
    "prefix_hits": signals.PREFIX_HITS,
    "drafts": signals.DRAFTS,
    "draft_tokens": signals.DRAFT_TOKENS,
    "accepted_tokens": signals.ACCEPTED_TOKENS,
    "preemptions": signals.PREEMPTIONS,
    "tpot_sum_s": f"{signals.TPOT}_sum",
    "tpot_count": f"{signals.TPOT}_count",
    "process_start": signals.PROCESS_START,
}
WANTED = frozenset({*SERIES.values(), signals.ACCEPTED_PER_POSITION, signals.CACHE_INFO})


def sample_metrics(text: str, *, ts: float, mono: float, witness: Mapping[str, Any] | None = None) -> Sample:
    """Read a Prometheus page; counters are summed over engines. A page that is none gives an empty sample."""
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    for (name, labels), value in _page(text).series.items():
        sums[name] = sums.get(name, 0.0) + value
        position = dict(labels).get("position", "")
        if name == signals.ACCEPTED_PER_POSITION and position.isdigit():
            positions[int(position)] = positions.get(int(position), 0.0) + value
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
    for (name, labels), _ in _page(text).series.items():
        if name == signals.CACHE_INFO and "enable_prefix_caching" in dict(labels):
            facts["prefix_caching"] = dict(labels)["enable_prefix_caching"] == "True"
    for worker in _workers(witness)[:1]:
        facts |= {"decode_backend": worker.decode_backend, "vllm": worker.vllm}
        if worker.platform == "cpu":
            facts["gpu"] = CPU
    return facts


def engagement(table: Mapping[str, Any]) -> Engagement | None:
    """Sum the witness pages; None when no worker has written one."""
    workers = _workers(table)
    if not workers:
        return None
    counts = pages.total(dict(enumerate(worker.counts for worker in workers)))
    reasons = {reason or "unknown": round(steps) for reason, steps in pages.by_reason(counts)}
    total = round(pages.decode_steps(counts))
    return Engagement(
        specialized=total - sum(reasons.values()),
        decode_and_mixed=total,
        reasons=reasons,
        started_at=max(float(page.get("started_at") or 0.0) for page in table["workers"]),
        decode_backend=workers[0].decode_backend,
    )


def _workers(table: Mapping[str, Any] | None) -> tuple[pages.WorkerPage, ...]:
    try:
        return pages.workers_of_table(table)
    except ValueError:
        return ()


def _page(text: str) -> Page:
    try:
        return parse(text.encode(), WANTED, required_prefix=signals.PREFIX)
    except PageError:
        return Page({})


def fetch(client: Client) -> tuple[str | None, dict[str, Any] | None]:
    """Raw ``/metrics`` text and ``/k3/witness`` JSON; None for a page that the server does not have."""
    metrics: str | None
    try:
        metrics = client.text("/metrics", timeout_s=5)
    except EngineError:
        metrics = None
    try:
        witness = client.json(pages.ROUTE, timeout_s=5)
    except EngineError:
        witness = None
    return metrics, witness if isinstance(witness, dict) else None


def take(client: Client) -> Sample | None:
    """One sample now, or None when the server does not answer with metrics."""
    metrics, witness = fetch(client)
    if metrics is None:
        return None
    return sample_metrics(metrics, ts=time.time(), mono=time.monotonic(), witness=witness)
