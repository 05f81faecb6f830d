"""Percentiles: the counts against exact arithmetic, the intervals against samples whose percentile is known."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from math import comb
from pathlib import Path

import pytest

from k3ctl.loadtest import percentiles, rows, summary, view
from k3ctl.loadtest.rows import Stat
from tests.loadtest import results


def slow_ones_are_unlikely(count: int, share: Fraction) -> bool:
    """MLPerf's condition with at most one slow request, in exact fractions."""
    tail = sum(comb(count, slow) * (1 - share) ** slow * share ** (count - slow) for slow in (0, 1))
    return tail <= Fraction(1, 100)


@pytest.mark.parametrize(("name", "count"), [("p50", 11), ("p90", 64), ("p95", 130), ("p99", 662)])
def test_the_counts_are_those_of_early_stopping(name: str, count: int) -> None:
    share = Fraction(int(name[1:]), 100)
    assert percentiles.least(percentiles.SHARES[name]) == count
    assert slow_ones_are_unlikely(count, share)
    assert not slow_ones_are_unlikely(count - 1, share)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, 90])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        percentiles.least(share)


def test_one_request_less_turns_the_figure_into_an_interval() -> None:
    enough = rows.describe([float(n) for n in range(64)])
    few = rows.describe([float(n) for n in range(63)])
    assert percentiles.told(enough)["p90"] == pytest.approx(56.7)
    assert "p90" not in percentiles.told(enough)["intervals"]
    told = percentiles.told(few)
    assert told["p90"] is None
    low, high = told["intervals"]["p90"]
    assert low < 55.8 < high


@pytest.mark.parametrize("count", [2, 5, 9, 22, 40, 63])
@pytest.mark.parametrize("name", ["p50", "p90", "p99"])
def test_the_true_percentile_lies_in_the_interval_as_often_as_is_said(count: int, name: str) -> None:
    """Uniform values, whose percentile is the share itself; the ends may be left open, never wrong too often."""
    draw, outside, tries = random.Random(7), 0, 400
    share = percentiles.SHARES[name]
    for _ in range(tries):
        ends = percentiles.interval(rows.describe([draw.random() for _ in range(count)]), name)
        low, high = ends or (None, None)
        outside += (low is not None and low > share) or (high is not None and high < share)
    # 5 % of 400 is 20; 34 is three standard deviations more
    assert outside <= 34


@pytest.mark.parametrize("definition", ["lower", "higher", "hazen"])
def test_however_the_client_interpolates_the_interval_is_no_narrower_than_the_ranks_allow(
    definition: str,
) -> None:
    """Another definition gives neighbouring order statistics: the interval still covers."""
    draw, outside, count = random.Random(11), 0, 50

    def quantile(ordered: list[float], share: float) -> float:
        at = {"lower": share * count, "higher": share * count + 1, "hazen": share * count + 0.5}[definition]
        return ordered[min(count, max(1, round(at))) - 1]

    for _ in range(400):
        ordered = sorted(draw.random() for _ in range(count))
        known = {name: quantile(ordered, share) for name, share in percentiles.KNOWN.items()}
        stat = Stat(**known, min=ordered[0], max=ordered[-1], count=count)
        low, high = percentiles.interval(stat, "p90") or (None, None)
        outside += (low is not None and low > 0.9) or (high is not None and high < 0.9)
    assert outside <= 34


def test_fewer_requests_never_say_more() -> None:
    """Worsen the input: with less behind it, a point goes, and an interval does not get narrower."""
    full = rows.describe([float(n) for n in range(1000)])
    width = 0.0
    for count in (1000, 662, 661, 130, 64, 63, 22, 11, 4, 2, 1, 0):
        stat = replace(full, count=count)
        for name, share in percentiles.SHARES.items():
            assert (percentiles.point(stat, name) is None) == (count < percentiles.least(share))
        low, high = percentiles.interval(stat, "p90") or (None, None)
        wide = (1e9 if high is None else high) - (-1e9 if low is None else low)
        assert wide >= width
        width = wide


def test_values_that_are_no_numbers_bound_nothing() -> None:
    broken = Stat(p50=float("nan"), p75=float("inf"), min=float("-inf"), max=float("nan"), count=20)
    assert percentiles.interval(broken, "p90") is None
    assert percentiles.cell(percentiles.told(broken), "p90", 1) == "–"


def test_every_percentile_that_is_shown_has_its_count() -> None:
    def shown(count: int) -> str:
        stat = replace(rows.describe([float(n) for n in range(100)]), count=count)
        return percentiles.cell(percentiles.told(stat), "p90", 1)

    assert shown(100) == "89.1 n=100"
    assert shown(50) == "74.2–99.0 n=50"
    assert shown(9) == "≥49.5 n=9"
    assert shown(1) == "–"


def test_a_rate_from_a_time_turns_the_interval_round() -> None:
    data = {"p90": None, "count": 50, "intervals": {"p90": [10.0, 20.0]}}
    assert percentiles.inverse_cell(data, "p90", 1000.0, 1) == "50.0–100 n=50"
    open_end = {**data, "intervals": {"p90": [10.0, None]}}
    assert percentiles.inverse_cell(open_end, "p90", 1000.0, 1) == "≤100 n=50"
    assert percentiles.inverse_cell({**data, "p90": 8.0}, "p90", 1000.0, 1) == "125.0 n=50"


def test_the_published_22_requests_give_no_p90(tmp_path: Path) -> None:
    """The blog's c=1 row holds 22 requests in its window: the table says where its p90 can lie, with the count."""
    directory = results.make(tmp_path / "r", "guidellm-8k1k-blogshape-c1-c4-c16.json", concurrency=(1, 4, 16))
    found = summary.summarize(directory / "raw")
    counts = [row["requests"]["completed"] for row in found["rows"]]
    assert [row["itl_ms"]["p90"] is not None for row in found["rows"]] == [count >= 64 for count in counts]
    assert [row["interactivity_p90_tok_s"] is not None for row in found["rows"]] == [
        count >= 64 for count in counts
    ]
    names, cells = view.table(found, view.LATENCY)
    for row, count in zip(cells, counts, strict=True):
        for name, text in zip(names, row, strict=True):
            if name.lower().startswith("p90"):
                assert text.endswith(f" n={count}"), (name, text)
