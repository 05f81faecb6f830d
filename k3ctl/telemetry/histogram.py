"""Prometheus histograms: deltas between two scrapes, sums over engines, quantiles with their resolution.

A cumulative histogram answers "how many were at most this". A quantile is therefore known only as the bucket
that holds it; ``Quantile`` keeps both edges, and nothing here interpolates inside a bucket.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Histogram:
    """Cumulative counts per upper bound; the last bound is ``inf``. ``total`` is the sum of observations."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float

    @property
    def count(self) -> float:
        """Number of observations."""
        return self.counts[-1] if self.counts else 0.0

    @property
    def mean(self) -> float | None:
        """Exact mean of the observations, which no bucket blurs; None without observations."""
        return self.total / self.count if self.count > 0 else None


@dataclass(frozen=True)
class Quantile:
    """The bucket ``(low, high]`` that holds a quantile, in the histogram's unit."""

    low: float
    high: float


def histogram(buckets: Iterable[tuple[float, float]], total: float) -> Histogram | None:
    """Build from ``(upper bound, cumulative count)`` pairs; None unless complete and monotone.

    A page that broke off lacks the ``inf`` bucket or has counts that fall: such a histogram is unusable.
    """
    ordered = sorted(buckets)
    if not ordered or not math.isinf(ordered[-1][0]):
        return None
    counts = tuple(count for _, count in ordered)
    if any(later < earlier for earlier, later in pairwise(counts)):
        return None
    return Histogram(tuple(bound for bound, _ in ordered), counts, total)


def delta(older: Histogram, newer: Histogram) -> Histogram | None:
    """Observations made between two scrapes; None when the counts went backwards or the buckets changed."""
    if older.bounds != newer.bounds:
        return None
    counts = tuple(b - a for a, b in zip(older.counts, newer.counts, strict=True))
    if any(count < 0 for count in counts):
        return None
    return Histogram(newer.bounds, counts, max(0.0, newer.total - older.total))


def merge(parts: Iterable[Histogram]) -> Histogram | None:
    """Sum of histograms with equal buckets; None when there are none or they differ."""
    merged: Histogram | None = None
    for part in parts:
        if merged is None:
            merged = part
        elif merged.bounds != part.bounds:
            return None
        else:
            counts = tuple(a + b for a, b in zip(merged.counts, part.counts, strict=True))
            merged = Histogram(merged.bounds, counts, merged.total + part.total)
    return merged


def quantile(data: Histogram, share: float) -> Quantile | None:
    """The bucket that holds the ``share`` quantile (0 < share <= 1); None without observations."""
    if data.count <= 0:
        return None
    rank = share * data.count
    low = 0.0
    for bound, count in zip(data.bounds, data.counts, strict=True):
        if count >= rank:
            return Quantile(low, bound)
        low = bound
    return Quantile(low, math.inf)
