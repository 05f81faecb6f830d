"""The arithmetic behind a verdict: quantisation step, confidence interval, Little's law. Pure functions."""

from __future__ import annotations

import math

from k3ctl.loadtest.rows import Row, Stat

# Two-sided 95 % quantiles of Student's t by degrees of freedom; the next lower entry is used in between.
T95 = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228,
    12: 2.179, 15: 2.131, 20: 2.086, 25: 2.060, 30: 2.042, 40: 2.021, 60: 2.000, 120: 1.980,
}  # fmt: skip


def step_share(completed: int) -> float | None:
    """One request more or less, as a share of the throughput: 1 / completed."""
    return 1.0 / completed if completed else None


def interval_share(latency: Stat) -> float | None:
    """Half-width of the 95 % interval of the mean latency, as a share of the mean: t · s / (√n · mean).

    With a fixed number of requests in flight, throughput is that number over the mean latency, so the same
    share holds for the throughput. Requests that run side by side are not independent: read it as a lower
    bound.
    """
    if latency.count < 2 or not latency.mean or latency.std is None or not math.isfinite(latency.std):
        return None
    return t95(latency.count - 1) * latency.std / (math.sqrt(latency.count) * latency.mean)


def resolution_share(row: Row) -> float | None:
    """The smallest difference that a row can show: the larger of quantisation step and interval."""
    shares = [
        share for share in (step_share(row.completed), interval_share(row.latency_s)) if share is not None
    ]
    return max(shares, default=None)


def little_ratio(row: Row) -> float | None:
    """Throughput × mean latency over concurrency × mean output length; 1 when every slot was busy.

    Above 1 more work was counted than the slots can do in the window; below 1 slots stood idle.
    """
    if not row.latency_s.mean or not row.output_tokens.mean:
        return None
    return row.output_tok_s * row.latency_s.mean / (row.concurrency * row.output_tokens.mean)


def t95(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t."""
    return T95[max(known for known in T95 if known <= max(freedom, 1))]


def per_second(latency_ms: float | None) -> float | None:
    """1000 / ms: tokens per second of one user from an inter-token latency."""
    return 1000.0 / latency_ms if latency_ms else None
