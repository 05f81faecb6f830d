"""The same events always give the same figures, whatever the feeds do in between."""

from __future__ import annotations

import pytest

from k3ctl.server.prometheus import parse
from k3ctl.telemetry import rules
from k3ctl.telemetry.bench import BenchState
from k3ctl.telemetry.events import BenchReported, Event, FeedFailed, GpusRead, MetricsRead
from k3ctl.telemetry.gpus import GpuFinding, GpuSample
from k3ctl.telemetry.reducer import HISTORY_POINTS, State, reduce, reduce_all
from k3ctl.telemetry.view import View, build
from tests.telemetry.feeding import FIXTURES, URL, fixture_page, page, read


def look(events: list[Event], now: float) -> View:
    return rules.judge(build(reduce_all(events), now))


def counting(start: float, seconds: int, per_second: float, base: float = 0.0) -> list[Event]:
    return [
        read(start + i, generation_tokens_total=base + per_second * i, num_requests_running=1)
        for i in range(seconds + 1)
    ]


def test_rates_are_increments_over_the_last_ten_seconds() -> None:
    events = counting(0, 20, 100) + counting(21, 20, 500, base=2000)
    assert look(events, 41).load.output_tok_s == pytest.approx(500)


def test_one_page_gives_totals_but_no_rates() -> None:
    view = look([read(5, generation_tokens_total=1234)], 5)
    assert view.load.output_tok_s is None
    assert view.load.totals["generation_tokens"] == 1234


def test_counters_that_go_backwards_are_a_restart_not_a_spike() -> None:
    events = [*counting(0, 10, 100), *counting(20, 3, 50)]
    view = look(events, 23)
    assert view.load.output_tok_s == pytest.approx(50)
    assert view.servers[0].restarts == 1
    assert "server-restarted" in {alert.rule for alert in view.alerts}
    assert all(point.output_tok_s is None or point.output_tok_s >= 0 for point in view.history)


def test_a_page_that_arrives_late_changes_nothing() -> None:
    state = reduce_all(counting(0, 10, 100))
    assert reduce(state, read(4, generation_tokens_total=1)) is state


def test_a_page_that_lacks_a_counter_is_no_restart() -> None:
    events = [*counting(0, 5, 100), read(6, num_requests_running=1), *counting(7, 3, 100, base=700)]
    view = look(events, 10)
    assert view.servers[0].restarts == 0
    assert view.load.totals["generation_tokens"] == 1000


def test_a_dead_server_is_down_after_it_had_answered_and_waiting_before() -> None:
    failed = FeedFailed(3, URL, "metrics", "connection refused")
    assert look([failed], 4).servers[0].state == "waiting"
    view = look([read(1, generation_tokens_total=1), failed], 13)
    assert view.servers[0].state == "down"
    assert view.servers[0].down_s == 10
    assert view.alerts[0].rule == "server-down"
    assert view.load.running is None


def test_a_silent_feed_is_late() -> None:
    assert look([read(1, generation_tokens_total=1)], 20).servers[0].state == "late"


def test_two_servers_add_up() -> None:
    other = [
        MetricsRead(e.t, "http://b:8000", e.page) for e in counting(0, 10, 300) if isinstance(e, MetricsRead)
    ]
    view = look([*counting(0, 10, 100), *other], 10)
    assert view.load.output_tok_s == pytest.approx(400)
    assert view.load.running == 2
    assert view.history[-1].output_tok_s == pytest.approx(400)


def test_history_is_bounded() -> None:
    state = reduce_all(counting(0, HISTORY_POINTS + 50, 1))
    assert len(state.servers[URL].history) == HISTORY_POINTS
    assert len(state.servers[URL].engines["0"].samples) < 80


@pytest.mark.parametrize(
    ("fixture", "expected"),
    [
        ("metrics-healthy-c1-k7-al3.84.prom", set()),
        ("metrics-synthetic-al6.prom", {"synthetic-acceptance"}),
        ("metrics-acceptance-collapse-al1.0.prom", {"acceptance-collapse"}),
        ("metrics-nospec-c64.prom", set()),
        ("metrics-c16-k7-over64rows.prom", {"rows-over-limit", "prefix-cache-no-hits"}),
        ("metrics-bf16-ssm-state.prom", {"path-excluded"}),
        ("metrics-replayssm-on.prom", {"path-excluded"}),
        ("metrics-preempting-kv-full.prom", {"preempting", "rows-over-limit"}),
        ("metrics-capacity-rejections.prom", {"requests-rejected"}),
        ("metrics-dp2-one-engine-idle.prom", {"engine-idle"}),
        ("metrics-stall-t0.prom", set()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_single_page_raises_exactly_the_alerts_of_its_fixture(fixture: str, expected: set[str]) -> None:
    view = look([MetricsRead(100.0, URL, fixture_page(fixture))], 101)
    assert {alert.rule for alert in view.alerts} == expected


def test_requests_running_without_a_token_for_thirty_seconds_is_a_stall() -> None:
    pages = [fixture_page("metrics-stall-t0.prom"), fixture_page("metrics-stall-t60.prom")]
    view = look([MetricsRead(0.0, URL, pages[0]), MetricsRead(60.0, URL, pages[1])], 61)
    assert [alert.rule for alert in view.alerts] == ["stalled"]
    assert "33 requests running" in view.alerts[0].detail


def test_a_long_prefill_is_no_stall() -> None:
    def prefilling(t: float, steps: int) -> Event:
        steps_line = f'vllm:iteration_tokens_total_bucket{{le="+Inf"}} {steps}'
        text = f"vllm:num_requests_running 1\nvllm:generation_tokens_total 5\n{steps_line}\n"
        return MetricsRead(t, URL, parse(text.encode(), frozenset(WANTED_STALL), required_prefix="vllm:"))

    view = look([prefilling(0, 10), prefilling(40, 50)], 41)
    assert view.alerts == ()


WANTED_STALL = (
    "vllm:num_requests_running",
    "vllm:generation_tokens_total",
    "vllm:iteration_tokens_total_bucket",
)


def test_acceptance_length_is_one_plus_accepted_per_draft() -> None:
    acceptance = look(
        [MetricsRead(0, URL, fixture_page("metrics-healthy-c1-k7-al3.84.prom"))], 0
    ).load.acceptance
    assert acceptance is not None
    assert acceptance.length == pytest.approx(3.840, abs=5e-4)
    assert acceptance.rates[0] == pytest.approx(0.84, abs=1e-3)
    assert acceptance.draft_tokens == 7


def test_speculation_switched_on_without_a_draft_yet_divides_by_nothing() -> None:
    assert look([MetricsRead(0, URL, fixture_page("metrics-replayssm-on.prom"))], 0).load.acceptance is None


def test_corrupt_output_is_suspected_from_repetition() -> None:
    def finished(t: float, stop: int, repetition: int) -> Event:
        rows = {"stop": stop, "repetition": repetition}
        text = "".join(f'vllm:request_success_total{{finished_reason="{k}"}} {v}\n' for k, v in rows.items())
        return MetricsRead(
            t, URL, parse(text.encode(), frozenset({"vllm:request_success_total"}), required_prefix="vllm:")
        )

    assert look([finished(0, 0, 0), finished(10, 30, 1)], 10).alerts == ()
    assert [alert.rule for alert in look([finished(0, 0, 0), finished(10, 8, 4)], 10).alerts] == [
        "corrupt-output"
    ]


def test_a_witness_share_counts_decode_and_mixed_steps_only() -> None:
    view = look([witnessed(0, 0, 0, 0), witnessed(10, 90, 10, 500)], 10)
    assert view.path.engagement == pytest.approx(0.9)
    assert view.path.basis == "last 10 s"
    assert view.alerts == ()


def test_a_window_of_prefills_only_falls_back_to_the_whole_life() -> None:
    view = look([witnessed(0, 90, 10, 0), witnessed(10, 90, 10, 5)], 10)
    assert view.path.basis == "since start"
    assert view.path.engagement == pytest.approx(0.9)


def test_a_path_that_engaged_before_and_does_not_now_is_lost() -> None:
    view = look([witnessed(0, 5000, 10, 0), witnessed(10, 5001, 60, 0)], 10)
    assert [alert.rule for alert in view.alerts] == ["path-lost"]
    assert "over the row limit" in view.alerts[0].detail


def test_a_path_that_never_engaged_is_not_engaged() -> None:
    view = look([witnessed(0, 0, 0, 0), witnessed(10, 0, 60, 0)], 10)
    assert [alert.rule for alert in view.alerts] == ["path-not-engaged"]


def test_the_standard_backend_on_purpose_is_no_alert() -> None:
    view = look([witnessed(0, 0, 0, 0, backend="auto"), witnessed(10, 0, 60, 0, backend="auto")], 10)
    assert view.alerts == ()
    assert view.path.engagement == 0.0


def witnessed(
    t: float, fast: int, standard: int, prefill: int, backend: str = "latency_specialized"
) -> Event:
    rows = [
        ('path="specialized",kind="decode",mode="full",reason=""', fast),
        ('path="standard",kind="decode",mode="full",reason="rows-over-limit"', standard),
        ('path="standard",kind="prefill",mode="eager",reason="prefill-in-batch"', prefill),
    ]
    lines = ['vllm:num_requests_running{engine="0"} 1']
    lines += [f'k3_steps_total{{rank="0",{labels}}} {count}' for labels, count in rows]
    lines.append(f'k3_witness_info{{rank="0",vllm="0.33.0",known_build="true",decode_backend="{backend}"}} 1')
    names = frozenset({"vllm:num_requests_running", "k3_steps_total", "k3_witness_info"})
    return MetricsRead(t, URL, parse(("\n".join(lines) + "\n").encode(), names, required_prefix="vllm:"))


def test_findings_of_a_gpu_reading_are_alerts_until_a_reading_without_them() -> None:
    found = GpuFinding("gpu.lost", "fail", "GPU lost", "GpuIsLost", "reset it", "GPU 2")
    bad, good = GpusRead(1, "node0", (), (found,)), GpusRead(3, "node0", ())
    assert [(alert.rule, alert.where) for alert in look([bad], 1).alerts] == [("gpu.lost", "node0 GPU 2")]
    assert look([bad, good], 3).alerts == ()


def test_nvlink_rates_come_from_two_readings() -> None:
    readings = [
        GpusRead(t, "node0", (GpuSample(0, nvlink_tx_bytes=int(t * 4e9), nvlink_errors=int(t)),))
        for t in (1, 3)
    ]
    gpu = look(list(readings), 3).nodes[0].gpus[0]
    assert gpu.nvlink_tx_bytes_s == pytest.approx(4e9)
    assert gpu.nvlink_errors_new == 2


def test_a_benchmark_stream_becomes_rows() -> None:
    import json

    lines = (FIXTURES / "guidellm-events-0.8.1.jsonl").read_text().splitlines()
    events = [BenchReported((row := json.loads(line))["ts"], "bench", row) for line in lines]
    bench = look(list(events), events[-1].t).bench
    assert isinstance(bench, BenchState)
    assert bench.state == "done"
    assert [(row.strategy, row.phase, row.completed) for row in bench.rows] == [
        ("concurrent@1", "done", 16),
        ("concurrent@4", "done", bench.rows[1].completed),
    ]
    assert bench.rows[0].output_tok_s == pytest.approx(185.744, abs=1e-3)


def test_unknown_values_stay_unknown() -> None:
    view = look([MetricsRead(0, URL, page(num_requests_running=0))], 0)
    assert view.load.kv_usage is None
    assert view.load.prefix_hit_share is None
    assert view.load.ttft is None
    assert look([], 0) == rules.judge(build(State(), 0))


def test_the_documentation_lists_every_alert_as_it_is() -> None:
    page_text = (FIXTURES.parent.parent / "docs" / "how-to" / "monitor.md").read_text()
    for rule_id, rule in rules.RULES.items():
        source = f" ({rule.source})" if rule.source else ""
        assert f"| `{rule_id}` | {rule.severity} | {rule.meaning}{source} |" in page_text


def test_every_alert_of_the_fixtures_is_declared_or_one_of_doctors() -> None:
    fired = set()
    for fixture in sorted(FIXTURES.glob("metrics-*.prom")):
        fired |= {
            alert.rule for alert in look([MetricsRead(100.0, URL, fixture_page(fixture.name))], 101).alerts
        }
    assert len(fired) >= 7
    assert fired <= set(rules.RULES)
