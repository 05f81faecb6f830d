"""Figures computed from two samples of one engine, and their sums over engines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from k3ctl.telemetry.engines import EngineSample
from k3ctl.telemetry.histogram import Histogram, Quantile, delta, merge, quantile

SINCE_START = "since start"


@dataclass(frozen=True)
class Window:
    """What happened between two samples: increments, and increments per second."""

    seconds: float
    counts: Mapping[str, float] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    finished: Mapping[str, float] = field(default_factory=dict)
    positions: tuple[float, ...] = ()


@dataclass(frozen=True)
class Latency:
    """A latency distribution in seconds: exact mean, quantiles as buckets, and what it covers."""

    count: float
    mean_s: float
    p50: Quantile
    p90: Quantile
    p99: Quantile
    basis: str


@dataclass(frozen=True)
class Acceptance:
    """Speculative decoding: acceptance length (bonus token included) and acceptance rate per position."""

    draft_tokens: int
    drafts: float
    length: float
    rates: tuple[float, ...]
    basis: str

    @property
    def saturated(self) -> bool:
        """Every draft at every position accepted: length K+1."""
        return self.drafts >= 100 and bool(self.rates) and min(self.rates) >= 0.9995

    @property
    def looks_synthetic(self) -> bool:
        """Rates that step from 1 to 0 with at most one value between: no real drafter does that."""
        between = sum(0.0 < rate < 1.0 for rate in self.rates)
        falling = all(a >= b for a, b in pairwise(self.rates))
        return (
            len(self.rates) >= 2 and self.drafts >= 50 and self.rates[0] == 1.0 and between <= 1 and falling
        )


def went_backwards(older: EngineSample, newer: EngineSample) -> bool:
    """A counter fell: the engine restarted between the two samples."""
    return any(
        newer.counters[name] < value for name, value in older.counters.items() if name in newer.counters
    )


def moved(older: EngineSample, newer: EngineSample) -> bool:
    """The engine made progress, as ``signals.stalled`` means it: tokens, an iteration, or the cache in use."""
    steps = (older.engine_steps, newer.engine_steps)
    if None not in steps and steps[0] != steps[1]:
        return True
    counters = ("generation_tokens", "prompt_tokens")
    return older.gauges.get("kv_usage") != newer.gauges.get("kv_usage") or any(
        older.counters.get(name) != newer.counters.get(name) for name in counters
    )


def window(seconds: float, older: EngineSample, newer: EngineSample) -> Window:
    """Increments between two samples ``seconds`` apart; counters that either lacks are left out."""
    counts = {
        name: value - older.counters[name] for name, value in newer.counters.items() if name in older.counters
    }
    histograms = {
        name: change
        for name, newest in newer.histograms.items()
        if name in older.histograms and (change := delta(older.histograms[name], newest)) is not None
    }
    finished = {reason: value - older.finished.get(reason, 0.0) for reason, value in newer.finished.items()}
    pairs = zip(older.accepted_per_position, newer.accepted_per_position, strict=False)
    return Window(
        seconds=seconds,
        counts=counts,
        rates={name: count / seconds for name, count in counts.items()},
        histograms=histograms,
        finished=finished,
        positions=tuple(b - a for a, b in pairs),
    )


def since_start(sample: EngineSample) -> Window:
    """Everything the engine counted so far; it has no rates."""
    return Window(
        seconds=0.0,
        counts=sample.counters,
        histograms=sample.histograms,
        finished=sample.finished,
        positions=sample.accepted_per_position,
    )


def combine(windows: Sequence[Window]) -> Window:
    """Sum over engines. Histograms whose buckets differ between engines are left out."""
    names = {name for part in windows for name in part.histograms}
    merged = {
        name: merge(part.histograms[name] for part in windows if name in part.histograms) for name in names
    }
    width = max((len(part.positions) for part in windows), default=0)
    return Window(
        seconds=max((part.seconds for part in windows), default=0.0),
        counts=add(part.counts for part in windows),
        rates=add(part.rates for part in windows),
        histograms={name: data for name, data in merged.items() if data is not None},
        finished=add(part.finished for part in windows),
        positions=tuple(
            sum(part.positions[i] for part in windows if i < len(part.positions)) for i in range(width)
        ),
    )


def add(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sum of mappings, key by key."""
    summed: dict[str, float] = {}
    for part in parts:
        for key, value in part.items():
            summed[key] = summed.get(key, 0.0) + value
    return summed


def latency(recent: Window, whole: Window, name: str) -> Latency | None:
    """The distribution of ``name`` in the recent window, or since start when the window saw nothing."""
    for data, basis in (
        (recent.histograms.get(name), last(recent)),
        (whole.histograms.get(name), SINCE_START),
    ):
        if data is None or data.count <= 0 or data.mean is None:
            continue
        p50, p90, p99 = (quantile(data, share) for share in (0.50, 0.90, 0.99))
        if p50 and p90 and p99:
            return Latency(data.count, data.mean, p50, p90, p99, basis)
    return None


def acceptance(recent: Window, whole: Window) -> Acceptance | None:
    """Acceptance in the recent window, or since start when it saw no drafts; None without any."""
    for part, basis in ((recent, last(recent)), (whole, SINCE_START)):
        drafts = part.counts.get("drafts", 0.0)
        accepted = part.counts.get("accepted_tokens")
        if drafts <= 0 or accepted is None:
            continue
        rates = tuple(min(1.0, max(0.0, count / drafts)) for count in part.positions)
        return Acceptance(len(rates), drafts, 1.0 + accepted / drafts, rates, basis)
    return None


def share(window_: Window, part: str, whole: str) -> float | None:
    """``part`` divided by ``whole`` in a window; None when nothing was counted."""
    denominator = window_.counts.get(whole, 0.0)
    if denominator <= 0 or part not in window_.counts:
        return None
    return window_.counts[part] / denominator


def last(window_: Window) -> str:
    """How people read a window's length."""
    return f"last {window_.seconds:.0f} s"
