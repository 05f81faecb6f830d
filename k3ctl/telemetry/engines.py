"""The meaning of vLLM's series: one ``EngineSample`` per ``engine`` label of a page.

Their names are in ``k3ctl.signals``. A value the page lacks is None, never zero: a server that does not speculate
has no acceptance length, not one of zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from k3ctl import signals
from k3ctl.server.prometheus import Page
from k3ctl.server.witness import FAMILIES as WITNESS_FAMILIES
from k3ctl.telemetry.histogram import Histogram, histogram

COUNTERS: Mapping[str, str] = {
    "prompt_tokens": signals.PROMPT_TOKENS,
    "generation_tokens": signals.GENERATION_TOKENS,
    "preemptions": signals.PREEMPTIONS,
    "prefix_queries": signals.PREFIX_QUERIES,
    "prefix_hits": signals.PREFIX_HITS,
    "drafts": signals.DRAFTS,
    "draft_tokens": signals.DRAFT_TOKENS,
    "accepted_tokens": signals.ACCEPTED_TOKENS,
    "corrupted": signals.CORRUPTED,
}
"""Our name → series."""

GAUGES: Mapping[str, str] = {
    "running": signals.RUNNING,
    "waiting": signals.WAITING,
    "kv_usage": signals.CACHE_USED,
}
"""Our name → series."""

HISTOGRAMS: Mapping[str, str] = {
    "ttft": signals.TTFT,
    "itl": signals.ITL,
    "e2e": signals.E2E,
    "queue": signals.QUEUE,
    "iteration_tokens": signals.ITERATION_TOKENS,
    "prompt_length": signals.PROMPT_LENGTH,
}
"""Our name → series."""

_HISTOGRAM_PARTS = {
    f"{series}_{part}": (name, part)
    for name, series in HISTOGRAMS.items()
    for part in ("bucket", "sum", "count")
}
_COUNTER_NAMES = {series: name for name, series in COUNTERS.items()}
_GAUGE_NAMES = {series: name for name, series in GAUGES.items()}

WANTED = frozenset(
    {*_COUNTER_NAMES, *_GAUGE_NAMES, *_HISTOGRAM_PARTS, *WITNESS_FAMILIES}
    | {
        signals.ACCEPTED_PER_POSITION,
        signals.FINISHED,
        signals.WAITING_BY_REASON,
        signals.REJECTIONS,
        signals.CACHE_INFO,
    }
)
"""Every series name that the pipeline reads."""


@dataclass(frozen=True)
class EngineSample:
    """What one engine reported on one page; counters count from the engine's start."""

    gauges: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    waiting_by_reason: Mapping[str, float] = field(default_factory=dict)
    finished: Mapping[str, float] = field(default_factory=dict)
    accepted_per_position: tuple[float, ...] = ()
    cache_info: Mapping[str, str] = field(default_factory=dict)

    @property
    def engine_steps(self) -> float | None:
        """Engine iterations since the start; None when the page has no iteration histogram."""
        steps = self.histograms.get("iteration_tokens")
        return steps.count if steps else None


@dataclass(frozen=True)
class ServerSample:
    """One server's page: its engines by label, and what has no engine label."""

    engines: Mapping[str, EngineSample]
    model: str = ""
    rejections: Mapping[str, float] = field(default_factory=dict)


def server_sample(page: Page) -> ServerSample:
    """Group a page's series by engine."""
    engines: dict[str, _Builder] = defaultdict(_Builder)
    rejections: dict[str, float] = {}
    model = ""
    for (name, label_pairs), value in page.series.items():
        labels = dict(label_pairs)
        model = model or labels.get("model_name", "")
        if name == signals.REJECTIONS:
            rejections[labels.get("reason", "")] = value
        elif name.startswith(signals.PREFIX):
            engines[labels.get("engine", "0")].add(name, labels, value)
    return ServerSample(
        engines={label: engines[label].build() for label in sorted(engines, key=_engine_order)},
        model=model,
        rejections=rejections,
    )


def _engine_order(label: str) -> tuple[int, str]:
    return (int(label), "") if label.isdecimal() else (1 << 30, label)


def _keep_worst(gauges: dict[str, float], name: str, value: float) -> None:
    """Several API server processes may each export a gauge of one engine (label ``pid``): the worst one counts."""
    gauges[name] = max(value, gauges.get(name, value))


class _Builder:
    """Collects one engine's series."""

    def __init__(self) -> None:
        self.gauges: dict[str, float] = {}
        self.counters: dict[str, float] = {}
        self.waiting_by_reason: dict[str, float] = {}
        self.finished: dict[str, float] = {}
        self.positions: dict[int, float] = {}
        self.cache_info: dict[str, str] = {}
        self.buckets: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.sums: dict[str, float] = {}

    def add(self, name: str, labels: Mapping[str, str], value: float) -> None:
        if name in _COUNTER_NAMES:
            self.counters[_COUNTER_NAMES[name]] = value
        elif name in _GAUGE_NAMES:
            _keep_worst(self.gauges, _GAUGE_NAMES[name], value)
        elif name in _HISTOGRAM_PARTS:
            self._add_histogram(*_HISTOGRAM_PARTS[name], labels, value)
        elif name == signals.WAITING_BY_REASON:
            self.waiting_by_reason[labels.get("reason", "")] = value
        elif name == signals.FINISHED:
            self.finished[labels.get("finished_reason", "")] = value
        elif name == signals.ACCEPTED_PER_POSITION and labels.get("position", "").isdecimal():
            self.positions[int(labels["position"])] = value
        elif name == signals.CACHE_INFO:
            self.cache_info = dict(labels)

    def _add_histogram(self, name: str, part: str, labels: Mapping[str, str], value: float) -> None:
        if part == "sum":
            self.sums[name] = value
        elif part == "bucket":
            try:
                self.buckets[name].append((float(labels.get("le", "")), value))
            except ValueError:
                return

    def build(self) -> EngineSample:
        histograms = {
            name: built
            for name, buckets in self.buckets.items()
            if (built := histogram(buckets, self.sums.get(name, 0.0))) is not None
        }
        positions = tuple(self.positions[i] for i in range(len(self.positions)) if i in self.positions)
        return EngineSample(
            gauges=self.gauges,
            counters=self.counters,
            histograms=histograms,
            waiting_by_reason=self.waiting_by_reason,
            finished=self.finished,
            accepted_per_position=positions,
            cache_info=self.cache_info,
        )
