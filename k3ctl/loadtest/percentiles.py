"""When a percentile may be printed: with enough requests, else as an interval. Pure.

The counts are those of MLPerf Inference's early stopping (inference_rules.adoc, confidence 0.99, tolerance 0): with *n*
requests of which at most one may be slower than the estimate, the estimate holds when so few slow ones are that
unlikely by chance, P(Binomial(n, 1 − p) ≤ 1) ≤ 0.01. Below the count, order statistics give the interval: a client's
own quantiles are its order statistics, whichever of the usual definitions it interpolates by.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from functools import cache
from typing import Any

from k3ctl.loadtest.rows import Stat

SHARES: Mapping[str, float] = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
"""The percentiles that k3ctl prints."""
KNOWN: Mapping[str, float] = {"p25": 0.25, "p75": 0.75, **SHARES}
"""Quantiles of a ``Stat`` besides its least and its greatest value."""
EARLY_STOPPING = 0.01
"""One minus MLPerf's confidence."""
INTERVAL = 0.95
"""Confidence of an interval, half of the rest on either side."""

Interval = tuple[float | None, float | None]
"""Low and high end; None: that end cannot be known from so few requests."""


@cache
def least(share: float) -> int:
    """Fewest requests with which a percentile may be printed: p50 11, p90 64, p95 130, p99 662.

    Raises:
        ValueError: ``share`` is not between 0 and 1.
    """
    if not 0 < share < 1:
        raise ValueError(f"a percentile's share lies between 0 and 1, not {share}")
    count = 1
    while share**count + count * (1 - share) * share ** (count - 1) > EARLY_STOPPING:
        count += 1
    return count


def point(stat: Stat, name: str) -> float | None:
    """The percentile ``name`` (``p90``), or None with too few requests, or when the client does not tell it."""
    value = getattr(stat, name)
    return None if value is None or stat.count < least(SHARES[name]) else float(value)


def interval(stat: Stat, name: str) -> Interval | None:
    """Where a percentile of too few requests lies, at 95 %; None when nothing bounds it on either side.

    Each end is the nearest of the client's own quantiles whose rank is far enough from the percentile's.
    """
    share, spare = SHARES[name], (1 - INTERVAL) / 2
    lows: list[float] = []
    highs: list[float] = []
    for value, first, last in _ranked(stat):
        if below(stat.count, share, last - 1) <= spare:
            lows.append(value)
        if 1 - below(stat.count, share, first - 1) <= spare:
            highs.append(value)
    found = (max(lows, default=None), min(highs, default=None))
    return None if found == (None, None) else found


def below(count: int, share: float, most: int) -> float:
    """P(Binomial(count, share) ≤ most): that at most so many of ``count`` requests lie below the true percentile."""
    if most < 0:
        return 0.0
    return math.fsum(
        math.exp(
            math.lgamma(count + 1)
            - math.lgamma(k + 1)
            - math.lgamma(count - k + 1)
            + k * math.log(share)
            + (count - k) * math.log1p(-share)
        )
        for k in range(min(most, count) + 1)
    )


def _ranked(stat: Stat) -> Iterator[tuple[float, int, int]]:
    """The known values with the ranks (1 … count) between which any definition of a sample quantile puts them."""
    if stat.count < 1:
        return
    grid = {"min": (1, 1), "max": (stat.count, stat.count)} | {
        name: (
            max(1, math.floor(share * stat.count)),
            min(stat.count, math.ceil(share * stat.count) + 1),
        )
        for name, share in KNOWN.items()
    }
    for name, (first, last) in grid.items():
        value = getattr(stat, name)
        if value is not None and math.isfinite(value):
            yield float(value), first, last


def told(stat: Stat) -> dict[str, Any]:
    """A distribution as a result states it: percentiles that the count allows, ``intervals`` for the others."""
    kept = {name: value for name, value in asdict(stat).items() if name not in KNOWN}
    points = {name: point(stat, name) for name in SHARES}
    intervals = {
        name: list(ends)
        for name, value in points.items()
        if value is None and (ends := interval(stat, name)) is not None
    }
    return {**kept, **points, "intervals": intervals}


def stat_of(data: Mapping[str, Any]) -> Stat:
    """The distribution behind ``told``'s JSON, without what was withheld."""
    names = {field.name for field in fields(Stat)}
    return Stat(**{name: value for name, value in data.items() if name in names})


def cell(data: Mapping[str, Any], name: str, digits: int) -> str:
    """A percentile of ``told``'s JSON for people, with its count: ``412.0 n=87``, ``398–450 n=22``, ``≥398 n=9``."""
    return _text(data[name], (data.get("intervals") or {}).get(name), data["count"], digits)


def inverse_cell(data: Mapping[str, Any], name: str, numerator: float, digits: int) -> str:
    """The same of ``numerator`` over the percentile: a rate from a time, so the ends change places."""
    value, ends = data[name], (data.get("intervals") or {}).get(name)
    turned = ends and [None if not end else numerator / end for end in reversed(ends)]
    return _text(numerator / value if value else None, turned, data["count"], digits)


def _text(value: float | None, ends: list[float | None] | None, count: int, digits: int) -> str:
    if value is not None:
        return f"{value:.{digits}f} n={count}"
    low, high = ends or (None, None)
    if low is not None and high is not None:
        return f"{_short(low)}–{_short(high)} n={count}"
    if low is not None:
        return f"≥{_short(low)} n={count}"
    return "–" if high is None else f"≤{_short(high)} n={count}"


def _short(value: float) -> str:
    """Three figures: an interval is no more exact than that, and the table stays narrow."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"
