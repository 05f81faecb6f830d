"""Quantiles are buckets; means are exact."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3ctl.telemetry.histogram import Histogram, Quantile, delta, histogram, merge, quantile

BOUNDS = (0.1, 0.25, 0.5, 1.0, math.inf)


def observed(values: list[float]) -> Histogram:
    return Histogram(BOUNDS, tuple(float(sum(v <= bound for v in values)) for bound in BOUNDS), sum(values))


@given(st.lists(st.floats(0.001, 5.0), min_size=1, max_size=50), st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_the_bucket_holds_the_true_quantile(values: list[float], share: float) -> None:
    found = quantile(observed(values), share)
    assert found is not None
    true = sorted(values)[math.ceil(share * len(values)) - 1]
    assert found.low < true <= found.high


@given(st.lists(st.floats(0.001, 5.0), max_size=30), st.lists(st.floats(0.001, 5.0), min_size=1, max_size=30))
def test_a_delta_is_the_histogram_of_what_came_between(before: list[float], after: list[float]) -> None:
    change = delta(observed(before), observed(before + after))
    assert change is not None
    assert change.counts == observed(after).counts
    assert change.mean == pytest.approx(sum(after) / len(after))


def test_counts_that_fall_are_a_restart_not_a_delta() -> None:
    assert delta(observed([0.2, 0.3]), observed([0.2])) is None


def test_changed_buckets_give_no_delta() -> None:
    assert delta(Histogram((1.0, math.inf), (0.0, 1.0), 2.0), observed([0.2])) is None


def test_nothing_observed_has_no_quantile_and_no_mean() -> None:
    assert quantile(observed([]), 0.5) is None
    assert observed([]).mean is None


def test_beyond_the_last_finite_bucket_the_upper_edge_is_infinite() -> None:
    assert quantile(observed([3.0]), 0.5) == Quantile(1.0, math.inf)


def test_a_histogram_without_its_infinite_bucket_or_with_falling_counts_is_unusable() -> None:
    assert histogram([(0.1, 1.0), (0.2, 2.0)], 0.3) is None
    assert histogram([(0.1, 5.0), (math.inf, 2.0)], 0.3) is None
    assert histogram([], 0.0) is None


def test_engines_with_other_buckets_are_not_added() -> None:
    assert merge([observed([0.2]), Histogram((1.0, math.inf), (1.0, 1.0), 0.2)]) is None
    both = merge([observed([0.2]), observed([0.3])])
    assert both is not None
    assert both.counts == observed([0.2, 0.3]).counts
