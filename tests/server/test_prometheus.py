"""A page may be wrong in any way; what is right on it still counts."""

from __future__ import annotations

import pytest

from k3ctl.server.prometheus import Page, PageError, parse
from k3ctl.signals import PREFIX
from k3ctl.telemetry.engines import WANTED, server_sample

RUNNING = 'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'


def read(text: str) -> Page:
    return parse(text.encode(), WANTED, required_prefix=PREFIX)


def value(page: Page, name: str) -> float | None:
    return next((number for (series, _), number in page.series.items() if series == name), None)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("<!doctype html><title>502</title>", "HTML"),
        ("", "empty"),
        ("  \n \n", "empty"),
        ('{"detail": "not found"}', "JSON"),
        ("sglang:num_running_reqs{} 3.0\n", "sglang"),
        ("# HELP tgi_queue_size x\ntgi_queue_size 1\n", "no `vllm:` series"),
        ("\x00\x01\x02", "no `vllm:` series"),
    ],
    ids=["html", "empty", "blank", "json", "another-engine", "no-prefix", "binary"],
)
def test_a_page_of_another_kind_is_refused_with_what_it_looks_like(body: str, reason: str) -> None:
    with pytest.raises(PageError, match=reason):
        read(body)


def test_half_a_page_keeps_its_whole_lines() -> None:
    page = read(RUNNING + 'vllm:num_requests_waiting{engine="0",model_n')
    assert value(page, "vllm:num_requests_running") == 3.0
    assert value(page, "vllm:num_requests_waiting") is None
    assert "breaks off" in page.problems[0]


def test_a_histogram_cut_before_its_last_bucket_is_left_out() -> None:
    name = "vllm:time_to_first_token_seconds"
    page = read(RUNNING + f'{name}_bucket{{engine="0",le="0.1"}} 4.0\n{name}_sum{{engine="0"}} 0.2\n')
    assert "ttft" not in server_sample(page).engines["0"].histograms


def test_unknown_metric_types_and_foreign_series_break_nothing() -> None:
    page = read("# TYPE vllm:num_requests_running stateset\n" + RUNNING + "# TYPE go_gc quux\ngo_gc{} x\n")
    assert value(page, "vllm:num_requests_running") == 3.0
    assert page.problems == ()


def test_nan_and_infinite_values_count_as_missing() -> None:
    page = read(
        RUNNING + 'vllm:kv_cache_usage_perc{engine="0"} NaN\nvllm:prompt_tokens_total{engine="0"} +Inf\n'
    )
    assert value(page, "vllm:kv_cache_usage_perc") is None
    assert value(page, "vllm:prompt_tokens_total") is None
    assert "2 values are not finite" in page.problems[0]


def test_of_duplicate_series_the_first_counts() -> None:
    page = read(RUNNING + RUNNING.replace("3.0", "9.0"))
    assert value(page, "vllm:num_requests_running") == 3.0
    assert "1 duplicate" in page.problems[0]


def test_an_unreadable_line_loses_only_itself() -> None:
    page = read('vllm:num_requests_waiting{engine="0} 1.0\n' + RUNNING + "vllm:prompt_tokens_total twelve\n")
    assert value(page, "vllm:num_requests_running") == 3.0
    assert "2 unreadable lines" in page.problems[0]


def test_invalid_utf8_in_a_label_is_survived() -> None:
    body = b'vllm:num_requests_running{engine="0",model_name="\xff\xfe"} 3.0\n'
    assert value(parse(body, WANTED, required_prefix=PREFIX), "vllm:num_requests_running") == 3.0


def test_engines_are_told_apart_by_label_and_ordered_as_numbers() -> None:
    lines = "".join(f'vllm:num_requests_running{{engine="{i}"}} {i}\n' for i in (10, 2, 0))
    sample = server_sample(read(lines))
    assert list(sample.engines) == ["0", "2", "10"]
    assert sample.engines["10"].gauges["running"] == 10
