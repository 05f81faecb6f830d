"""Acceptance per request: vLLM 0.33.0's own accumulator makes what the answers say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from k3ctl.loadtest import acceptance, aiperf, guards, judged, summary, view
from k3ctl.loadtest.guards import GuardEvidence
from tests.loadtest import results
from tests.loadtest.results import K3_TARGET
from tests.loadtest.test_guards import GOOD, LOAD


def told(*accepted: int, drafts: int = 3) -> dict[str, Any]:
    """``metrics.speculative_decoding`` of a request whose verify steps accepted these many drafts, as vLLM says it."""
    stats = pytest.importorskip("vllm.v1.metrics.stats")
    metrics = stats.RequestSpecDecodeMetrics.new(drafts)
    for count in accepted:
        metrics.observe(drafts, count)
    return dict(metrics.to_dict())


def request(ts: float, prompt: int | None, server: Any, **changes: Any) -> dict[str, Any]:
    return {"kind": "request", "status": "completed", "ts": ts, "inp": prompt, "server": server} | changes


def spoken(*accepted: int) -> dict[str, Any]:
    return {"speculative_decoding": told(*accepted)}


def test_tokens_per_step_are_counted_over_steps_and_not_over_requests() -> None:
    """One long request that is never accepted, one of a single step that is: the mean over requests says 2.5."""
    found = acceptance.of([request(1, 100, spoken(*[0] * 99)), request(2, 100, spoken(3))])
    whole = acceptance.summed(found)
    assert whole is not None
    assert whole.length == pytest.approx(1.03)
    assert whole.request_mean == pytest.approx(2.5)
    assert whole.draft_share == pytest.approx(3 / 300)
    assert (whole.requests, whole.steps) == (2, 100)


def test_each_context_has_its_own() -> None:
    found = acceptance.of(
        [request(1, 1023, spoken(3)), request(2, 1024, spoken(0)), request(3, 300_000, spoken(1, 2))]
    )
    buckets = [(first, last, part.length) for first, last, part in acceptance.by_context(found)]
    assert buckets == [(0, 1023, 4.0), (1024, 4095, 1.0), (262_144, None, 2.5)]


@pytest.mark.parametrize(
    "event",
    [
        request(1, 5, None),
        request(1, 5, {}),
        request(1, 5, {"speculative_decoding": None}),
        request(1, 5, {"speculative_decoding": {"num_spec_steps": 0, "num_accepted_draft_tokens": 0}}),
        request(1, 5, {"speculative_decoding": {"num_spec_steps": 2, "num_accepted_draft_tokens": True}}),
        request(1, 5, {"speculative_decoding": {"num_spec_steps": -2, "num_accepted_draft_tokens": 1}}),
        request(
            1,
            5,
            {
                "speculative_decoding": {
                    "num_spec_steps": 2,
                    "num_accepted_draft_tokens": 9,
                    "num_draft_tokens": 6,
                }
            },
        ),
        request(1, 5, {"speculative_decoding": {"num_spec_steps": 2}}, status="errored"),
        {"kind": "tick", "ts": 1},
    ],
)
def test_what_tells_nothing_or_contradicts_itself_is_left_out(event: dict[str, Any]) -> None:
    assert acceptance.of([event]) == []
    assert acceptance.summed([]) is None


def test_only_requests_of_the_window_count() -> None:
    events = [request(ts, 5, spoken(3)) for ts in (1, 5, 9)]
    assert len(acceptance.of(events, 4, 8)) == 1
    assert len(acceptance.of(events, None, 8)) == 2


def test_a_request_belongs_to_the_window_in_which_its_answer_ended_not_its_line() -> None:
    late = request(8.4, 5, spoken(3), start_ts=6.0, latency_s=1.9)
    assert len(acceptance.of([late], 4, 8)) == 1


def test_a_request_without_a_prompt_length_counts_and_is_in_no_context() -> None:
    found = acceptance.of([request(1, None, spoken(3))])
    assert acceptance.summed(found) is not None
    assert acceptance.by_context(found) == []


def test_aiperfs_records_say_the_same() -> None:
    tags = {"spec_decode_steps": 4, "spec_decode_accepted_draft_tokens": 6, "spec_decode_draft_tokens": 12}
    record = {
        "metadata": {"request_end_ns": 2_000_000_000, "request_start_ns": 1_000_000_000},
        "metrics": {name: {"value": value} for name, value in tags.items()},
    }
    event = aiperf.request_event(record)
    assert event is not None
    whole = acceptance.summed(acceptance.of([event]))
    assert whole is not None
    assert (whole.length, whole.draft_share) == (2.5, 0.5)


def test_people_read_it_with_its_counts_and_ranks_that_said_nothing(tmp_path: Path) -> None:
    events = [request(1, 100, spoken(3, 0)), request(2, 2000, spoken(0)), request(3, 300_000, spoken(2, 2))]
    row = {"concurrency": 4, "acceptance": judged._acceptance(acceptance.of(events))}
    assert view._accepted(row) == [
        "c=4 acceptance: 2.40 tokens per step (5 steps of 3 requests; mean over requests 2.17); by prompt length: "
        "0–1023 2.50 (1 requests), 1024–4095 1.00 (1 requests), from 262144 3.00 (1 requests)"
    ]
    assert view._accepted({"concurrency": 4, "acceptance": None}) == []
    found = summary.summarize(results.make(tmp_path / "r") / "raw")
    silent = {**found, "ranks": {"missing": ["rank 2 has no page"]}}
    assert view.findings(silent)[-1] == "ranks: rank 2 has no page"
    assert not [line for line in view.findings(found) if line.startswith("ranks")]


def level(request_mean: float, length: float = 2.0) -> list[str]:
    per_request = acceptance.Acceptance(10, 1000, length, request_mean, None)
    evidence = GuardEvidence(GOOD, LOAD, K3_TARGET.deployment, None, None, accepted=per_request)
    return [f.level for f in guards.judge(evidence) if f.guard == "acceptance-mean"]


def test_means_that_are_apart_are_a_caution_the_more_the_surer() -> None:
    assert [level(2.0 + apart) for apart in (0.0, 0.09, 0.11, 0.5, -0.5)] == [[], [], *[["caution"]] * 3]
