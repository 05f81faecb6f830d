"""Every GuideLLM fixture gets the verdict that its README row names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from k3ctl.loadtest import guards, rows, scrape, stats, workload
from k3ctl.loadtest.guards import GuardEvidence
from k3ctl.loadtest.rows import Row, Stat
from k3ctl.loadtest.window import ServerWindow, server_window
from tests.loadtest.results import FIXTURES, K3_TARGET

LOAD = workload.load("8k1k")
GOOD = Row(
    concurrency=4, window_s=120.0, completed=100, errored=0, incomplete=4, completed_whole_run=100,
    output_tok_s=100 * 1000 / 120, total_tok_s=None, request_s=100 / 120,
    latency_s=Stat(mean=4.8, std=0.05, min=4.7, max=4.9, count=100),
    ttft_ms=Stat(mean=300, p50=300, count=100), ttfot_ms=Stat(mean=300, count=100),
    itl_ms=Stat(mean=4.5, p50=4.5, p90=4.6, count=100), prompt_tokens=Stat(mean=8000, count=100),
    output_tokens=Stat(mean=1000, count=100), tokens_per_chunk=Stat(mean=3.84, std=0.2, count=100),
)  # fmt: skip


def judge(row: Row = GOOD, server: ServerWindow | None = None, **changes: Any) -> dict[str, str]:
    """Guard name → level, for one row."""
    evidence = replace(GuardEvidence(row, LOAD, K3_TARGET.deployment, server, 3.84), **changes)
    return {finding.guard: finding.level for finding in guards.judge(evidence)}


def test_a_good_row_is_valid_and_only_its_request_count_is_noted() -> None:
    assert judge(deployment=replace(K3_TARGET.deployment, num_speculative_tokens=8)) == {
        "request-count": "note"
    }


@pytest.mark.parametrize(
    ("name", "guard", "text"),
    [
        ("guidellm-max-errors-hit.json", "errors", "10 of 16 requests failed"),
        ("guidellm-zero-success.json", "errors", "no request finished"),
        ("guidellm-short-outputs-eos.json", "output-length", "mean output 312 tokens, asked 1000"),
        ("guidellm-tokenizer-mismatch.json", "prompt-length", "mean prompt 8812 tokens, asked 8000 (+10%)"),
        ("guidellm-absurd-itl-std.json", "statistics", "ITL: standard deviation 4.2e+09"),
        ("guidellm-synthetic-al6.json", "prompt-length", "mean prompt 1 tokens, asked 8000"),
    ],
)
def test_a_report_that_is_not_what_it_claims_is_invalid(
    judged: Any, findings: Any, name: str, guard: str, text: str
) -> None:
    (row,) = judged(name)
    assert not row["valid"]
    assert any(text in found for found in findings(row, guard))


def test_the_inflated_prompts_of_guidellms_weka_replay_are_invalid(fixture_json: Any) -> None:
    """guidellm-weka-replay-0.8.1.json: the third turn was recorded with 960 prompt tokens, 1181 were sent."""
    turn = fixture_json("guidellm-weka-replay-0.8.1.json")["turns"][2]
    sent = turn["prompt_token_count"]["successful"]
    row = replace(GOOD, prompt_tokens=Stat(mean=sent["mean"], count=sent["count"]))
    assert judge(row, workload=replace(LOAD, prompt_tokens=960))["prompt-length"] == "invalid"


def test_the_published_rows_keep_their_arithmetic(judged: Any) -> None:
    found = judged("guidellm-8k1k-blogshape-c1-c4-c16.json")
    assert [round(row["little_ratio"], 2) for row in found] == [0.97, 1.09, 1.0]
    assert [round(100 * row["step_share"], 1) for row in found] == [4.5, 2.0, 1.1]
    assert [row["valid"] for row in found] == [True, False, True]


def test_the_lawful_twin_of_the_published_c4_row_passes(judged: Any) -> None:
    (row,) = judged("guidellm-8k1k-consistent-c4.json")
    assert round(row["little_ratio"], 2) == 1.01
    assert row["valid"]


def test_reasoning_only_answers_are_noted_and_their_tokens_count(judged: Any, findings: Any) -> None:
    (row,) = judged("guidellm-reasoning-only.json")
    assert row["valid"]
    assert findings(row, "reasoning-only")
    assert row["output_tokens"]["mean"] == 1000


def test_whole_chunks_above_the_reference_are_stamped_synthetic(judged: Any, findings: Any) -> None:
    (row,) = judged("guidellm-synthetic-al6.json")
    assert row["synthetic"]
    assert "SYNTHETIC" in findings(row, "synthetic")[0]


def test_the_error_limit_is_read_from_the_report_because_the_exit_status_is_zero(fixture_json: Any) -> None:
    cut = fixture_json("guidellm-errors-0.8.1.json")
    benchmark = {
        "metrics": {"request_totals": cut["request_totals"]},
        "scheduler_state": {"end_queuing_constraints": cut["end_queuing_constraints"]},
    }
    (row,) = rows.from_guidellm({"benchmarks": [benchmark]})
    assert row.stopped_by_errors
    assert row.errored == 5


def test_a_real_report_reads_completely(fixture_json: Any) -> None:
    found = rows.from_guidellm(fixture_json("guidellm-result-0.8.1-slim.json"))
    assert [row.concurrency for row in found] == [1, 4, 16]
    assert [row.completed for row in found] == [19, 76, 297]
    assert [row.completed_whole_run for row in found] == [22, 89, 346]
    assert found[0].itl_ms.mean == pytest.approx(4.986, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("metrics-healthy-c1-k7-al3.84.prom", {}),
        ("metrics-synthetic-al6.prom", {"synthetic": "caution"}),
        ("metrics-acceptance-collapse-al1.0.prom", {"acceptance": "caution"}),
        ("metrics-nospec-c64.prom", {}),
        ("metrics-replayssm-on.prom", {}),
    ],
)
def test_acceptance_is_judged_from_the_servers_counters(name: str, expected: dict[str, str]) -> None:
    zero = scrape.Sample(
        ts=0.0, mono=0.0, generation_tokens=0, prompt_tokens=0, drafts=0, draft_tokens=0, accepted_tokens=0
    )
    end = scrape.sample_metrics((FIXTURES / name).read_text(), ts=60.0, mono=60.0)
    found = judge(server=server_window([zero, end], None, None))
    assert {
        guard: level for guard, level in found.items() if guard in ("synthetic", "acceptance")
    } == expected


@pytest.mark.parametrize(
    ("server", "guard", "level"),
    [
        (ServerWindow(60, acceptance_length=7.3), "acceptance", "invalid"),
        (ServerWindow(60, prefix_hit_share=0.4), "prefix-cache", "invalid"),
        (ServerWindow(60, restarted=True), "restart", "invalid"),
        (ServerWindow(60, clock_jump_s=3.0), "clock", "invalid"),
    ],
    ids=["random-prompts", "prefix-hits", "restart", "clock-jump"],
)
def test_what_the_server_did_can_invalidate_a_row(server: ServerWindow, guard: str, level: str) -> None:
    assert judge(server=server)[guard] == level


def test_a_shared_prefix_without_hits_is_not_that_workload() -> None:
    shared = replace(LOAD, prefix_tokens=4000, prompt_tokens=4000)
    assert judge(server=ServerWindow(60, prefix_hit_share=0.0), workload=shared)["prefix-cache"] == "invalid"
    assert "prefix-cache" not in judge(server=ServerWindow(60, prefix_hit_share=0.5), workload=shared)


def test_a_waived_guard_becomes_a_note_with_the_presets_reason() -> None:
    row = replace(GOOD, prompt_tokens=Stat(mean=9000, count=100))
    waiving = replace(LOAD, waive={"prompt-length": "the template is long"})
    (finding,) = [
        f
        for f in guards.judge(GuardEvidence(row, waiving, K3_TARGET.deployment, None, None))
        if f.guard == "prompt-length"
    ]
    assert finding.level == "note"
    assert finding.text.endswith("waived by the preset: the template is long")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"prefix_caching": True}, "prefix caching is on, the preset's is off"),
        ({"num_speculative_tokens": 3}, "K is 3, the preset's is 8"),
        ({"acceptance": "none", "num_speculative_tokens": 8}, "acceptance is none, the preset's is real"),
    ],
)
def test_a_server_with_other_conditions_than_the_presets_is_a_caution(
    change: dict[str, Any], text: str
) -> None:
    deployment = replace(K3_TARGET.deployment, **{"num_speculative_tokens": 8, **change})
    found = guards.judge(GuardEvidence(GOOD, LOAD, deployment, None, None))
    assert [f.text for f in found if f.guard == "conditions"] == [text]


def test_a_saturated_client_is_a_caution() -> None:
    assert judge(replace(GOOD, dispatch_delay_s=1.0))["client-saturation"] == "caution"


@pytest.mark.parametrize(
    ("server_tpot_ms", "level"),
    [(None, None), (4.6, None), (5.5, None), (6.0, "caution"), (9.5, "invalid"), (2.0, None)],
)
def test_an_itl_that_the_server_cannot_have_given_is_found(
    server_tpot_ms: float | None, level: str | None
) -> None:
    assert judge(server=ServerWindow(60, tpot_ms=server_tpot_ms)).get("bursts") == level


def test_little_allows_five_percent_and_one_request() -> None:
    few = replace(GOOD, completed=10, output_tok_s=1.14 * 4 * 1000 / 4.8)
    many = replace(few, completed=1000)
    assert "little" not in judge(few)
    assert judge(many)["little"] == "invalid"


def test_the_interval_needs_two_requests_and_a_finite_deviation() -> None:
    assert stats.interval_share(Stat(mean=1.0, std=0.0, count=1)) is None
    assert stats.interval_share(Stat(mean=1.0, std=float("inf"), count=9)) is None
    # t(8) = 2.306: 2.306 · 0.1 / (3 · 1)
    assert stats.interval_share(Stat(mean=1.0, std=0.1, count=9)) == pytest.approx(0.07687, abs=1e-5)
