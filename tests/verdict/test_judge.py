"""From evidence to a verdict: every rule by name, and what each makes of evidence that breaks it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k3ctl.server.witness import StepCount, StepKey, WorkerPage
from k3ctl.verdict.evidence import RULES, DriveEvidence, Phase, flaw
from k3ctl.verdict.judge import REMEDIES, Grade, judge
from tests.verdict.served import (
    MIXED,
    OVER,
    PREFILL,
    SPECIALIZED,
    Step,
    decodes,
    drive,
    evidence,
    good,
    phase,
)

DOC = Path(__file__).parents[2] / "docs" / "reference" / "verify.md"


def standard(reason: str, kind: str = "decode") -> StepKey:
    return StepKey("standard", kind, "full", reason)


def in_drive(seen: DriveEvidence, index: int, change: Callable[[Phase], Phase]) -> DriveEvidence:
    return replace(seen, phases=tuple(change(p) if i == index else p for i, p in enumerate(seen.phases)))


def on_page(rank: int, /, **changes: Any) -> Callable[[Phase], Phase]:
    """Change what one rank says after the drive."""
    return lambda p: replace(p, after=tuple(replace(w, **changes) if w.rank == rank else w for w in p.after))


@pytest.mark.parametrize("query", [1, 4, 8])
@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize("rows", [2, 4, 8])
def test_counted_specialized_steps_are_a_proof(ranks: int, rows: int, query: int) -> None:
    verdict = judge(good(ranks=ranks, rows=rows, query=query))
    assert (verdict.grade, verdict.share, verdict.notes) == (Grade.PROVED, 1.0, ())
    steps = math.ceil(47 / query)
    assert f"{steps} of {steps} decode steps at batch {rows}" in verdict.statement


def test_every_drive_is_graded_by_itself_and_the_worst_is_the_answer() -> None:
    """What `--rows 32` with seven drafts gave on a GPU: batch 1 specialized, most of batch 32 over the row limit."""
    second = [
        Step(PREFILL, 32, 256, 32),
        *decodes(32, 27, query=8, key=OVER),
        *decodes(8, 8, query=8, accepted=8),
    ]
    verdict = judge(evidence(phase(1, drive(1, query=8), query=8), phase(32, second, query=8)))
    assert (verdict.grade, verdict.reason) == (Grade.NOT_ENGAGED, "rows-over-limit")
    assert "27 of 35 decode steps at batch 32" in verdict.statement
    assert verdict.share == pytest.approx(8 / 35)


def test_prompts_that_arrive_one_by_one_do_not_spoil_a_drive() -> None:
    """Each of our own requests may take the decodes of one step along; what is more counts."""
    ramp = [Step(PREFILL, 1, 8, 1), *[Step(MIXED, n, 7 + n, n) for n in (2, 3, 4)]]
    seen = evidence(phase(4, [*ramp, *decodes(4, 46)]))
    assert judge(seen).grade is Grade.PROVED
    chopped = [*ramp, *[Step(MIXED, 4, 11, 4)] * 20, *decodes(4, 26)]
    verdict = judge(evidence(phase(4, chopped)))
    assert (verdict.grade, verdict.reason) == (Grade.NOT_ENGAGED, "prefill-in-batch")


def test_a_drive_without_a_step_of_decodes_alone_says_nothing() -> None:
    verdict = judge(evidence(phase(4, [Step(MIXED, 4, 11, 4)] * 3)))
    assert verdict.grade is Grade.UNKNOWN
    assert "--tokens" in verdict.remedy


@pytest.mark.parametrize("reason", sorted(set(REMEDIES) - {"slots-stock"}))
def test_the_reason_of_most_steps_is_named_with_its_remedy(reason: str) -> None:
    steps = [*decodes(1, 30, key=standard(reason)), *decodes(1, 2, key=standard("other")), *decodes(1, 15)]
    verdict = judge(evidence(phase(1, [Step(PREFILL, 1, 8, 1), *steps])))
    assert (verdict.grade, verdict.reason, verdict.remedy) == (Grade.NOT_ENGAGED, reason, REMEDIES[reason])


def test_stock_kernels_in_every_slot_are_no_specialized_step() -> None:
    verdict = judge(evidence(phase(1, drive(1, key=replace(SPECIALIZED, slots="stock")))))
    assert (verdict.grade, verdict.reason) == (Grade.NOT_ENGAGED, "slots-stock")


def test_slots_of_our_own_are_named() -> None:
    verdict = judge(evidence(phase(1, drive(1, key=replace(SPECIALIZED, slots="attn_res,kda")))))
    assert verdict.grade is Grade.PROVED
    assert "own kernels: attn_res,kda" in verdict.statement


def test_why_the_start_refused_is_passed_on() -> None:
    steps = drive(1, key=standard("refused"))
    assert "refused at start: LoRA" in judge(evidence(phase(1, steps, refused=("LoRA",)))).notes


def test_nobody_is_told_to_ask_for_what_the_deployment_cannot_have() -> None:
    steps = drive(1, key=standard("backend-off"))
    about = {"decode_backend": "auto", "unavailable": ("no such GPU",)}
    assert judge(evidence(phase(1, steps, **about))).remedy == "none on this deployment: no such GPU"


def test_an_unknown_build_is_never_a_proof() -> None:
    verdict = judge(good(known_build=False, vllm="0.34.0"))
    assert verdict.grade is Grade.CONSISTENT
    assert "0.34.0" in verdict.notes[0]


def test_without_request_counters_other_requests_cannot_be_ruled_out() -> None:
    seen = in_drive(good(), 1, lambda p: replace(p, served_generated=None, served_prompted=None))
    verdict = judge(seen)
    assert verdict.grade is Grade.CONSISTENT
    assert "other requests" in verdict.notes[0]


def test_pages_that_do_not_say_how_many_workers_there_are_prove_nothing() -> None:
    assert judge(good(workers=0)).grade is Grade.CONSISTENT


FLAWED: dict[str, list[tuple[str, Callable[[Phase], Phase], str]]] = {
    "alone": [
        ("more tokens than ours", lambda p: replace(p, served_generated=p.generated + 1.0), "other requests"),
        ("fewer tokens than ours", lambda p: replace(p, served_generated=p.generated - 1.0), "other requests"),
        ("more prompt than ours", lambda p: replace(p, served_prompted=500.0), "other requests"),
        ("busy before", lambda p: replace(p, busy_before=True), "other requests"),
    ],
    "every worker": [
        ("a rank never answers", lambda p: replace(p, before=p.before[1:], after=p.after[1:]), "1 of 2 workers"),
        ("a rank vanishes", lambda p: replace(p, after=p.after[:1]), "rank 1 did not answer"),
        ("a rank has no page from before", lambda p: replace(p, before=p.before[:1]), "rank 1 from before"),
        ("no page from before", lambda p: replace(p, before=()), "from before"),
        ("no page at all", lambda p: replace(p, before=(), after=()), "no worker answered"),
        ("a rank answers twice", lambda p: replace(p, after=(*p.after, p.after[0])), "more than once"),
        ("a rank answered twice", lambda p: replace(p, before=(*p.before, p.before[0])), "more than once"),
        ("ranks of two deployments", on_page(1, workers=4), "how many workers"),
        ("a rank that does not exist", on_page(1, rank=7), "from before"),
    ],
    "same workers": [
        ("counters went backwards", on_page(0, counts={SPECIALIZED: StepCount(1, 1, 1)}), "restarted"),
        ("another process", on_page(1, pid=9), "restarted"),
        ("a later start", on_page(1, started_at=1.8e9), "restarted"),
        ("another version", on_page(1, vllm="0.34.0"), "changed"),
    ],
    "sound counters": [
        ("not a number", lambda p: counted(p, OVER, StepCount(math.nan, 90, 90)), "cannot be"),
        ("endless", lambda p: counted(p, OVER, StepCount(math.inf, math.inf, math.inf)), "cannot be"),
        ("half a step", lambda p: counted(p, SPECIALIZED, StepCount(0.5, 0, 0)), "cannot be"),
        ("steps without rows", lambda p: counted(p, SPECIALIZED, StepCount(9999, 0, 0)), "cannot be"),
        ("rows without steps", lambda p: counted(p, SPECIALIZED, StepCount(0, 50, 50)), ""),
        ("more rows than requests", lambda p: counted(p, SPECIALIZED, StepCount(1, 50, 50)), ""),
        ("an unknown path", lambda p: counted(p, StepKey("warp", "decode", "full", ""), StepCount(1, 1, 1)), "unknown"),
        ("an unknown kind", lambda p: counted(p, StepKey("specialized", "x", "full", ""), StepCount(1, 1, 1)), ""),
        ("an unknown mode", lambda p: moved(p, SPECIALIZED, replace(SPECIALIZED, mode="warp")), "unknown kind"),
        ("no query length", lambda p: everywhere(p, query_len=0), "does not say"),
        ("no time", lambda p: replace(p, seconds=0.0), "no length"),
        ("no time at all", lambda p: replace(p, seconds=math.nan), "no length"),
    ],
    "decodes only": [
        ("prefills", lambda p: moved(p, SPECIALIZED, StepKey("specialized", "prefill", "full", "")), "prefills"),
        ("mixtures", lambda p: moved(p, SPECIALIZED, StepKey("specialized", "mixed", "full", "")), "prefills"),
        ("a reason for being standard", lambda p: moved(p, SPECIALIZED, replace(SPECIALIZED, reason="x")), ""),
        ("outside of a graph", lambda p: moved(p, SPECIALIZED, replace(SPECIALIZED, mode="eager")), "CUDA graph"),
        ("wider than a verify step", lambda p: counted(p, SPECIALIZED, StepCount(0, 0, 900)), ""),
    ],
    "ranks agree": [
        ("on the path", lambda p: moved(p, SPECIALIZED, standard("refused"), ranks={1}), "disagree"),
        ("on how many", lambda p: counted(p, SPECIALIZED, StepCount(1, 1, 1), ranks={1}), "disagree"),
        ("one counts nothing", lambda p: on_page(1, counts=p.before[1].counts)(p), "none on rank 1"),
        ("on the drafts", lambda p: each(p, lambda w: replace(w, query_len=1 + w.rank)), "configuration"),
    ],
    "tokens accounted": [
        ("fewer than the tokens need", lambda p: replace(p, generated=999, served_generated=999.0), "fewer than"),
        ("more than they can need", lambda p: counted(p, SPECIALIZED, StepCount(300, 300, 300)), "more than"),
        ("nothing generated", lambda p: replace(p, generated=0, served_generated=0.0), "generated no token"),
        ("first tokens only", lambda p: replace(p, generated=p.rows, served_generated=float(p.rows)), "generated no"),
        ("no step", lambda p: replace(p, after=p.before), "no decode step"),
        ("prefills only", lambda p: moved(p, SPECIALIZED, PREFILL), "no decode step"),
    ],
    "asked for": [
        ("refused", lambda p: everywhere(p, refused=("LoRA",)), "cannot have"),
        ("unavailable", lambda p: everywhere(p, unavailable=("this GPU",)), "cannot have"),
    ],
}  # fmt: skip


def counted(p: Phase, key: StepKey, more: StepCount, ranks: set[int] | None = None) -> Phase:
    """``more`` of ``key`` after the drive."""

    def changed(w: WorkerPage) -> WorkerPage:
        return replace(w, counts={**w.counts, key: w.counts.get(key, StepCount()) + more})

    return replace(p, after=tuple(changed(w) if ranks is None or w.rank in ranks else w for w in p.after))


def moved(p: Phase, key: StepKey, to: StepKey, ranks: set[int] | None = None) -> Phase:
    """The drive's steps of ``key`` were ``to``."""
    out = p
    for w in p.after:
        if ranks is None or w.rank in ranks:
            was = next(b.counts.get(key, StepCount()) for b in p.before if b.rank == w.rank)
            out = counted(counted(out, to, w.counts[key] - was, {w.rank}), key, was - w.counts[key], {w.rank})
    return out


def each(p: Phase, change: Callable[[WorkerPage], WorkerPage]) -> Phase:
    return replace(p, before=tuple(map(change, p.before)), after=tuple(map(change, p.after)))


def everywhere(p: Phase, **changes: Any) -> Phase:
    return each(p, lambda w: replace(w, **changes))


CASES = [(rule, *case) for rule, cases in FLAWED.items() for case in cases]


@pytest.mark.parametrize("index", [0, 1], ids=["batch 1", "batch 4"])
@pytest.mark.parametrize(
    ("rule", "name", "change", "told"), CASES, ids=[f"{rule}: {name}" for rule, name, *_ in CASES]
)
def test_evidence_that_breaks_a_rule_in_any_drive_says_nothing(
    rule: str, name: str, change: Callable[[Phase], Phase], told: str, index: int
) -> None:
    seen = in_drive(good(), index, change)
    verdict = judge(seen)
    assert verdict.grade is Grade.UNKNOWN, verdict
    assert told in verdict.statement
    assert verdict.remedy
    found = flaw(seen)
    assert found is not None and found.rule == rule


def test_the_launch_contradicts_the_counters() -> None:
    assert judge(replace(good(), requested=False)).grade is Grade.UNKNOWN
    assert judge(replace(good(), requested=None)).grade is Grade.PROVED
    verdict = judge(good(decode_backend="auto"))
    assert verdict.grade is Grade.UNKNOWN
    assert "cannot have" in verdict.statement


def test_requests_that_ran_one_after_another_prove_nothing_about_their_batch() -> None:
    """A server of one sequence at a time: its steps were specialized, but none of them at batch 8."""
    alone = [step for _ in range(8) for step in drive(1)]
    verdict = judge(evidence(phase(8, alone)))
    assert verdict.grade is Grade.CONSISTENT
    assert "1.0 requests ran at a time" in verdict.notes[0]


@pytest.mark.parametrize(
    ("drives", "grade"),
    [
        ([(8, "one by one"), (8, "met")], Grade.PROVED),
        ([(8, "met"), (8, "one by one")], Grade.PROVED),
        ([(8, "one by one"), (8, "one by one")], Grade.CONSISTENT),
        ([(4, "met"), (8, "one by one")], Grade.CONSISTENT),
        ([(8, "one by one"), (8, "standard")], Grade.NOT_ENGAGED),
        ([(8, "standard"), (8, "met")], Grade.NOT_ENGAGED),
    ],
)
def test_a_batch_is_shown_by_any_drive_of_it_and_every_drive_is_graded(
    drives: list[tuple[int, str]], grade: Grade
) -> None:
    history: list[Step] = []
    phases = []
    for rows, how in drives:
        key = standard("rows-over-limit") if how == "standard" else SPECIALIZED
        steps = drive(rows, key=key)
        if how == "one by one":
            steps = [step for _ in range(rows) for step in drive(1)]
        phases.append(phase(rows, steps, history=list(history)))
        history += steps
    assert judge(evidence(*phases)).grade is grade


def test_workers_that_change_between_two_drives_are_no_proof() -> None:
    seen = in_drive(good(), 1, lambda p: everywhere(p, pid=7))
    verdict = judge(seen)
    assert verdict.grade is Grade.UNKNOWN
    assert "between two drives" in verdict.statement


@pytest.mark.parametrize("changes", [{"pid": 9}, {"started_at": 1.8e9}], ids=str)
def test_a_restart_during_the_first_drive_is_seen_although_all_drives_end_on_the_same_workers(
    changes: dict[str, Any],
) -> None:
    """Its counters need not have gone backwards: a restarted worker soon counts more than the old one did."""
    first, second = good().phases
    restarted = replace(first, after=everywhere(first, **changes).after)
    verdict = judge(evidence(restarted, everywhere(second, **changes)))
    assert verdict.grade is Grade.UNKNOWN
    assert "restarted during the drive" in verdict.statement


def test_steps_before_the_drive_do_not_count() -> None:
    steps = drive(1, key=standard("graph-not-specialized"))
    verdict = judge(evidence(phase(1, steps, history=decodes(1, 900))))
    assert verdict.grade is Grade.NOT_ENGAGED


def test_data_parallel_engines_serve_different_requests() -> None:
    """Their workers are compared with those of their own engine only, and their steps add up."""
    both = phase(4, drive(3), other_engine=drive(1), ranks=2)
    verdict = judge(evidence(both))
    assert verdict.grade is Grade.PROVED
    assert verdict.drives[0].decodes == 2 * 47
    idle = phase(4, drive(4), other_engine=[])
    verdict = judge(evidence(idle))
    assert verdict.grade is Grade.CONSISTENT
    assert "engine 1 decoded nothing" in verdict.notes[0]
    one = replace(both, before=both.before[:2], after=both.after[:2])
    assert judge(evidence(one)).grade is Grade.UNKNOWN


def test_every_rule_is_in_the_reference_and_has_a_case_that_breaks_it() -> None:
    names = {rule.name for rule in RULES} | {"asked for"}
    assert names == set(FLAWED)
    told = set(re.findall(r"^\| \*([a-z ]+)\* \|", DOC.read_text(), re.MULTILINE))
    assert names <= told


BLIND = phase(1, drive(1))
BLIND = replace(BLIND, before=(), after=())


@pytest.mark.parametrize(
    ("seconds", "change", "grade"),
    [
        (0.24, {}, Grade.CONSISTENT),
        (0.48, {}, Grade.UNKNOWN),
        (0.24, {"served_generated": 99.0}, Grade.UNKNOWN),
        (0.24, {"busy_before": True}, Grade.UNKNOWN),
        (0.24, {"generated": 12, "served_generated": 12.0}, Grade.UNKNOWN),
        (0.0, {}, Grade.UNKNOWN),
        (math.nan, {}, Grade.UNKNOWN),
    ],
    ids=["as fast", "too slow", "with others", "busy", "too short", "no time", "no clock"],
)
def test_without_counters_configuration_and_step_time_are_consistent_at_best(
    seconds: float, change: dict[str, Any], grade: Grade
) -> None:
    seen = evidence(replace(BLIND, seconds=seconds, **change))
    assert judge(replace(seen, anchor_step_ms=5.17)).grade is grade
    for less in ({"requested": None}, {"anchor_step_ms": None}):
        assert judge(replace(seen, **{"anchor_step_ms": 5.17, **less})).grade is Grade.UNKNOWN


def test_without_counters_a_launch_that_did_not_ask_is_not_engaged() -> None:
    verdict = judge(evidence(BLIND, requested=False))
    assert (verdict.grade, verdict.reason) == (Grade.NOT_ENGAGED, "backend-off")


def test_without_any_evidence_the_answer_is_unknown() -> None:
    assert judge(evidence(BLIND)).grade is Grade.UNKNOWN
    assert judge(DriveEvidence(())).grade is Grade.UNKNOWN
