"""From evidence to a verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from k3ctl.server.witness import StepCount, StepKey, WorkerPage
from k3ctl.verdict.judge import REMEDIES, Evidence, Grade, Phase, judge

SPECIALIZED = StepKey("specialized", "decode", "eager", "")


def page(counts: dict[StepKey, StepCount], rank: int = 0, **changes: Any) -> WorkerPage:
    base = WorkerPage(rank, "0.1.0", "0.33.0", True, "cpu", "latency_specialized", 64, 4, (), counts)
    return replace(base, **changes)


def standard(reason: str, kind: str = "decode") -> StepKey:
    return StepKey("standard", kind, "eager", reason)


def phase(counted: dict[StepKey, float], **changes: Any) -> Phase:
    pages = {0: page({key: StepCount(steps, steps, steps) for key, steps in counted.items()})}
    base = Phase(1, 48, 8, 1.0, 48.0, 8.0, False, {0: page({})}, pages)
    return replace(base, **changes)


def test_counted_specialized_steps_are_a_proof() -> None:
    verdict = judge(Evidence([phase({SPECIALIZED: 40.0, standard("prefill-in-batch", "prefill"): 1.0})]))
    assert verdict.grade is Grade.PROVED
    assert verdict.share == 1.0
    assert "40 of 40" in verdict.statement


@pytest.mark.parametrize("reason", sorted(REMEDIES))
def test_the_reason_of_most_steps_is_named_with_its_remedy(reason: str) -> None:
    verdict = judge(Evidence([phase({standard(reason): 30.0, standard("other"): 2.0, SPECIALIZED: 1.0})]))
    assert verdict.grade is Grade.NOT_ENGAGED
    assert verdict.reason == reason
    assert verdict.remedy == REMEDIES[reason]


def test_why_the_start_refused_is_passed_on() -> None:
    refused = phase({standard("refused"): 30.0})
    after = {0: replace(refused.after[0], refused=("LoRA",))}
    verdict = judge(Evidence([replace(refused, after=after)]))
    assert "refused at start: LoRA" in verdict.notes


def test_nobody_is_told_to_ask_for_what_the_deployment_cannot_have() -> None:
    off = phase({standard("backend-off"): 30.0})
    after = {0: replace(off.after[0], decode_backend="auto", unavailable=("no such GPU",))}
    verdict = judge(Evidence([replace(off, after=after)]))
    assert verdict.remedy == "none on this deployment: no such GPU"


def test_an_unknown_build_is_never_a_proof() -> None:
    known = phase({SPECIALIZED: 40.0})
    verdict = judge(
        Evidence([replace(known, after={0: replace(known.after[0], known_build=False, vllm="0.34.0")})])
    )
    assert verdict.grade is Grade.CONSISTENT
    assert "0.34.0" in verdict.notes[0]


def test_without_request_counters_other_requests_cannot_be_ruled_out() -> None:
    unseen = phase({SPECIALIZED: 48}, served_generated=None, served_prompted=None)
    verdict = judge(Evidence([unseen]))
    assert verdict.grade is Grade.CONSISTENT
    assert "other requests" in verdict.notes[0]


@pytest.mark.parametrize(
    "changes",
    [{"served_generated": 60.0}, {"served_prompted": 500.0}, {"busy_before": True}],
    ids=["more tokens than ours", "more prompt than ours", "busy before"],
)
def test_foreign_traffic_makes_the_answer_unknown(changes: dict[str, Any]) -> None:
    verdict = judge(Evidence([phase({SPECIALIZED: 40.0}, **changes)]))
    assert verdict.grade is Grade.UNKNOWN
    assert "other requests" in verdict.statement


def test_steps_before_the_drive_do_not_count() -> None:
    before = {0: page({SPECIALIZED: StepCount(900, 900, 900)})}
    after = {0: page({SPECIALIZED: StepCount(900, 900, 900), standard("backend-off"): StepCount(40, 40, 40)})}
    verdict = judge(Evidence([phase({}, before=before, after=after)]))
    assert verdict.grade is Grade.NOT_ENGAGED


def test_a_counter_that_went_backwards_is_a_restart() -> None:
    before = {0: page({SPECIALIZED: StepCount(900, 900, 900)})}
    verdict = judge(Evidence([phase({SPECIALIZED: 40.0}, before=before)]))
    assert verdict.grade is Grade.UNKNOWN
    assert "restarted" in verdict.statement


def test_ranks_that_disagree_are_no_proof() -> None:
    after = {
        0: page({SPECIALIZED: StepCount(40, 40, 40)}),
        1: page({standard("refused"): StepCount(40, 40, 40)}, rank=1),
    }
    verdict = judge(Evidence([phase({}, after=after)]))
    assert verdict.grade is Grade.UNKNOWN
    assert "disagree" in verdict.statement


def test_without_counters_configuration_and_step_time_are_consistent() -> None:
    blind = phase({}, after={}, before={}, seconds=0.24)
    verdict = judge(Evidence([blind], requested=True, anchor_step_ms=5.17))
    assert verdict.grade is Grade.CONSISTENT


def test_without_counters_a_slow_step_contradicts_the_configuration() -> None:
    verdict = judge(
        Evidence([phase({}, after={}, before={}, seconds=0.48)], requested=True, anchor_step_ms=5.17)
    )
    assert verdict.grade is Grade.NOT_ENGAGED


def test_without_counters_a_launch_that_did_not_ask_is_not_engaged() -> None:
    verdict = judge(Evidence([phase({}, after={}, before={})], requested=False))
    assert verdict.grade is Grade.NOT_ENGAGED
    assert verdict.reason == "backend-off"


def test_without_any_evidence_the_answer_is_unknown() -> None:
    assert judge(Evidence([phase({}, after={}, before={})])).grade is Grade.UNKNOWN
