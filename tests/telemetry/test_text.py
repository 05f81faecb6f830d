"""Figures read the same everywhere."""

from __future__ import annotations

import math

import pytest

from k3ctl.deployment import Deployment
from k3ctl.telemetry import text
from k3ctl.telemetry.histogram import Quantile
from k3ctl.telemetry.reference import golden, golden_rates, step_anchor


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.25, 0.5, "250–500 ms"),
        (0.0, 0.01, "≤ 10 ms"),
        (0.75, 1.0, "750 ms–1 s"),
        (2.5, 5.0, "2.50–5 s"),
        (80.0, math.inf, "> 80 s"),
        (0.001, 0.0015, "1–1.50 ms"),
    ],
)
def test_a_quantile_reads_as_its_bucket(low: float, high: float, expected: str) -> None:
    assert text.bucket(Quantile(low, high)) == expected


@pytest.mark.parametrize(
    ("share", "expected"),
    [(None, "–"), (0, "0 %"), (1, "100 %"), (0.9996, ">99.9 %"), (0.0002, "<0.1 %"), (0.873, "87.3 %")],
)
def test_a_share_is_never_rounded_to_all_or_nothing(share: float | None, expected: str) -> None:
    assert text.percent(share) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "–"), (842.13, "842"), (12480, "12,480"), (84.23, "84.2"), (3.8401, "3.84"), (3, "3")],
)
def test_numbers_keep_three_digits(value: float | None, expected: str) -> None:
    assert text.number(value) == expected


def test_durations_read_as_clocks() -> None:
    assert [text.duration(s) for s in (None, 12.7, 185, 3723)] == ["–", "12 s", "3:05", "1:02:03"]


def test_sizes_and_bandwidth_carry_units() -> None:
    assert text.size(288400343040) == "268.6 GiB"
    assert text.gigabytes(4.55e11) == "455.0"


def test_golden_rates_are_the_increments_of_the_golden_curve() -> None:
    assert golden_rates(7) == (0.85, 0.66, 0.49, 0.36, 0.26, 0.13, 0.09)
    assert 1 + sum(golden_rates(7)) == pytest.approx(3.84)


def test_the_golden_curve_is_for_dspark_on_the_real_model() -> None:
    found = golden(Deployment(speculator="dspark"), "cuda", 7)
    assert found is not None
    assert found.length == 3.84
    assert golden(Deployment(), "", 7) == found
    assert golden(Deployment(speculator="mtp"), "cuda", 3) is None
    assert golden(Deployment(), "cpu", 3) is None
    assert golden(Deployment(), "", 9) is None


def test_step_anchors_are_the_published_ones_and_only_for_what_was_published() -> None:
    tp16 = Deployment(gpu="GB300", tensor_parallel_size=16)
    verify = step_anchor(tp16, 7, 1)
    assert verify is not None
    assert (round(verify.specialized_ms, 2), round(verify.standard_ms, 1)) == (7.13, 12.3)
    plain = step_anchor(tp16, 0, 3)
    assert plain is not None
    assert plain.batch == 4
    assert plain.specialized_ms == pytest.approx(4 / 702.5 * 1e3)
    assert step_anchor(tp16, 7, 8) is None
    assert step_anchor(Deployment(gpu="H200", tensor_parallel_size=8), 0, 1) is None
    assert step_anchor(Deployment(), 0, 1) is None
