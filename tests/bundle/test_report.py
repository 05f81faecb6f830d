from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from k3ctl.bundle import html, report, svg
from k3ctl.bundle.svg import Series

Make = Callable[..., Path]


def test_the_markdown_table_is_ready_for_a_pull_request(make_bundle: Make) -> None:
    text = report.markdown(report.load(make_bundle()))
    assert text.startswith("### 8k1k on moonshotai/Kimi-K3\n")
    assert "GPU B300 · GPUs 8 · TP 8" in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert "| 4 | 383.3 | 2.2% |" in text
    assert "381–417 there" in text


def test_an_invalid_row_is_shown_with_its_reason_and_not_compared(make_bundle: Make) -> None:
    text = report.markdown(report.load(make_bundle("guidellm-short-outputs-eos.json")))
    assert "INVALID" in text
    assert "mean output 312 tokens, asked 1000" in text
    assert "Against published" not in text


def test_a_synthetic_result_cannot_be_quoted_without_its_stamp(make_bundle: Make) -> None:
    loaded = report.load(make_bundle("guidellm-synthetic-al6.json", preset="decode-al6", concurrency=(1,)))
    assert report.markdown(loaded).startswith("### SYNTHETIC · ")
    assert '<span class="stamp">SYNTHETIC</span>' in html.page(loaded)


def test_a_damaged_bundle_is_rendered_with_a_warning(make_bundle: Make) -> None:
    directory = make_bundle()
    (directory / "command.txt").write_text("changed")
    assert "DOES NOT VERIFY" in report.markdown(report.load(directory))


def test_the_page_is_self_contained_and_its_plots_are_well_formed(make_bundle: Make) -> None:
    text = html.page(
        report.load(make_bundle("guidellm-8k1k-blogshape-c1-c4-c16.json", concurrency=(1, 4, 16)))
    )
    assert not re.search(r"<(script|link|img|iframe)|src=|href=|@import|url\(", text)
    plots = re.findall(r"<svg.*?</svg>", text, re.S)
    assert len(plots) == 4
    for plot in plots:
        ET.fromstring(plot)
    assert sum("polyline" in plot for plot in plots) == 3


def test_text_of_a_bundle_cannot_become_markup(make_bundle: Make) -> None:
    loaded = report.load(make_bundle())
    hostile = {**loaded.summary, "model": "<script>alert(1)</script>"}
    assert "<script>" not in html.page(replace(loaded, summary=hostile))


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 0.8), (0.0, 3606.1), (0.0, 1.0), (3.0, 3.0), (0.0, 1e-4)], ids=str
)
def test_ticks_are_few_and_inside(low: float, high: float) -> None:
    found = svg.ticks(low, high)
    assert 1 <= len(found) <= 9
    assert all(low <= tick <= high * (1 + 1e-9) for tick in found)


def test_a_chart_without_points_says_so() -> None:
    assert "no data" in svg.chart("t", "x", "y", [Series("a", [])])


def test_one_point_and_zero_height_do_not_divide_by_zero() -> None:
    ET.fromstring(svg.chart("t", "x", "y", [Series("a", [(1.0, 0.0)])], log_x=True))


def test_the_distribution_ends_at_one() -> None:
    points = svg.ecdf([3.0, 1.0, 2.0] * 500)
    assert points[-1] == (3.0, 1.0)
    assert len(points) <= 404
    assert svg.ecdf([1.0, 2.0]) == [(1.0, 0.0), (1.0, 0.5), (2.0, 0.5), (2.0, 1.0)]
