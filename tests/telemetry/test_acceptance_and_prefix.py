"""Acceptance against the golden curve, and why a prefix cache never hits: changed inputs, not known ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3ctl.server.prometheus import parse
from k3ctl.signals import PREFIX
from k3ctl.telemetry import rules
from k3ctl.telemetry.acceptance import break_position
from k3ctl.telemetry.engines import WANTED, server_sample
from k3ctl.telemetry.events import MetricsRead
from k3ctl.telemetry.reducer import reduce_all
from k3ctl.telemetry.reference import golden_rates
from k3ctl.telemetry.view import Alert, build
from tests.telemetry.feeding import URL, fixture_page


def alerts(*texts: bytes) -> dict[str, Alert]:
    events = [
        MetricsRead(60.0 * i, URL, parse(text, WANTED, required_prefix=PREFIX))
        for i, text in enumerate(texts)
    ]
    view = rules.judge(build(reduce_all(events), 60.0 * (len(texts) - 1) + 1))
    return {alert.rule: alert for alert in view.alerts}


def speculating(rates: Sequence[float], drafts: float = 5000) -> bytes:
    lines = [
        f"vllm:generation_tokens_total {drafts * (1 + sum(rates))}",
        f"vllm:spec_decode_num_drafts_total {drafts}",
        f"vllm:spec_decode_num_accepted_tokens_total {drafts * sum(rates)}",
    ]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {drafts * rate}'
        for i, rate in enumerate(rates)
    ]
    return ("\n".join(lines) + "\n").encode()


def test_a_drafter_that_breaks_after_the_first_position_is_an_alert_and_no_figure_alone() -> None:
    events = [
        MetricsRead(60.0 * i, URL, fixture_page(f"round2/report-X02/metrics-t{60 * i}.prom"))
        for i in range(2)
    ]
    view = rules.judge(build(reduce_all(events), 61.0))
    alert = next(alert for alert in view.alerts if alert.rule == "acceptance-low")
    assert "1.47 against 3.84" in alert.detail and "breaks after position 0" in alert.detail


@pytest.mark.parametrize("drafts", range(2, 9))
def test_the_golden_curve_itself_is_healthy_and_half_of_it_is_not(drafts: int) -> None:
    rates = golden_rates(drafts)
    assert not alerts(speculating(rates)).keys() & {"acceptance-low", "acceptance-saturated"}
    broken = [rates[0], *(rate * 0.3 for rate in rates[1:])]
    assert "breaks after position 0" in alerts(speculating(broken))["acceptance-low"].detail


def test_a_workload_that_is_evenly_harder_is_low_only_when_it_is_far_below() -> None:
    creative = [0.62, 0.4, 0.26, 0.16, 0.09, 0.05, 0.03]  # length 2.61: published for creative writing
    assert "acceptance-low" not in alerts(speculating(creative))
    hard = [0.42, 0.22, 0.12, 0.06, 0.03, 0.015, 0.008]
    assert "evenly" in alerts(speculating(hard))["acceptance-low"].detail


@pytest.mark.parametrize("position", range(1, 6))
def test_the_position_where_it_breaks_is_named(position: int) -> None:
    rates = list(golden_rates(7))
    rates[position:] = [rate * 0.2 for rate in rates[position:]]
    assert break_position(5000, rates, golden_rates(7)) == position


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0, 1), st.integers(0, 7))
def test_worse_acceptance_never_makes_a_break_go_away_earlier_than_it_was(
    rates: list[float], factor: float, at: int
) -> None:
    falling = sorted(rates, reverse=True)
    reference = golden_rates(len(falling))
    before = break_position(1e9, falling, reference)
    if before is None or at != before:
        return
    worse = [rate * factor if i >= at else rate for i, rate in enumerate(falling)]
    assert break_position(1e9, worse, reference) in {before, None if factor == 0 else before}


def test_few_drafts_are_not_judged() -> None:
    assert "acceptance-low" not in alerts(speculating([0.4, 0.0, 0.0], drafts=90))


@pytest.mark.parametrize("drafts", [1, 3, 7])
def test_every_draft_accepted_is_suspect_output_not_a_good_drafter(drafts: int) -> None:
    found = alerts(speculating([1.0] * drafts))
    assert found["acceptance-saturated"].severity == "fail"
    assert f"{drafts + 1:.2f} = K+1" in found["acceptance-saturated"].detail
    assert "synthetic-acceptance" not in found
    assert "acceptance-saturated" not in alerts(speculating([1.0] * (drafts - 1) + [0.99]))


def caching(
    *,
    on: str = "True",
    retention: str = "0",
    hits: int = 0,
    mean: int = 8000,
    requests: int = 200,
    block: int = 768,
) -> bytes:
    bounds = [500, 1000, 2000, 5000, 10000, 20000]
    lines = [
        f'vllm:cache_config_info{{block_size="{block}",enable_prefix_caching="{on}",'
        f'prefix_cache_retention_interval="{retention}"}} 1',
        f"vllm:prefix_cache_queries_total {requests * mean}",
        f"vllm:prefix_cache_hits_total {hits}",
        f'vllm:request_success_total{{finished_reason="stop"}} {requests}',
        *(
            f'vllm:request_prompt_tokens_bucket{{le="{bound}"}} {requests if mean <= bound else 0}'
            for bound in bounds
        ),
        f'vllm:request_prompt_tokens_bucket{{le="+Inf"}} {requests}',
        f"vllm:request_prompt_tokens_sum {requests * mean}",
        f"vllm:request_prompt_tokens_count {requests}",
    ]
    return ("\n".join(lines) + "\n").encode()


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (caching(mean=600, requests=400), "more than one block of 768"),
        (caching(mean=1200, block=1536, requests=400), "more than one block of 1536"),
        (caching(), "retention interval 0"),
        (caching(retention="1536"), "every 1536 tokens"),
        (caching(retention="None"), "densely"),
    ],
)
def test_no_hits_says_which_reason_fits(page: bytes, reason: str) -> None:
    assert reason in alerts(page)["prefix-cache-no-hits"].detail


@pytest.mark.parametrize(
    "page", [caching(on="False"), caching(on=""), caching(hits=1), caching(requests=20)], ids=str
)
def test_caching_off_unknown_hit_or_little_asked_is_no_finding(page: bytes) -> None:
    assert "prefix-cache-no-hits" not in alerts(page)


def test_gauges_of_several_api_servers_are_merged_by_the_worst_whatever_their_order() -> None:
    lines = [
        f'vllm:num_requests_running{{engine="0",pid="{pid}"}} {n}\n'
        f'vllm:kv_cache_usage_perc{{engine="0",pid="{pid}"}} {usage}\n'
        for pid, n, usage in ((11, 3, 0.9), (12, 7, 0.2), (13, 0, 0.0))
    ]
    for order in (lines, lines[::-1]):
        engine = server_sample(parse("".join(order).encode(), WANTED, required_prefix=PREFIX)).engines["0"]
        assert engine.gauges["running"] == 7 and engine.gauges["kv_usage"] == 0.9
