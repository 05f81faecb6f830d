"""Nothing but a proof makes *proved*: mutation of every field, and servers that are simulated step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3ctl.server.witness import StepCount, StepKey, WorkerPage
from k3ctl.verdict.evidence import DriveEvidence, Phase
from k3ctl.verdict.judge import PROVED_SHARE, Grade, judge
from tests.verdict.served import (
    MIXED,
    OVER,
    PREFILL,
    SPECIALIZED,
    Step,
    decodes,
    evidence,
    good,
    phase,
)
from tests.verdict.test_judge import CASES, everywhere, in_drive, moved

RUNS = settings(max_examples=150, deadline=None, print_blob=True)
RANKED = {Grade.PROVED: 2, Grade.CONSISTENT: 1, Grade.NOT_ENGAGED: 0, Grade.UNKNOWN: 0}

words = st.sampled_from(
    ["", "cuda", "auto", "standard", "specialized", "prefill", "mixed", "0.34.0", "x", "none"]
)
numbers = st.one_of(
    st.integers(-3, 400).map(float), st.sampled_from([math.nan, math.inf, -math.inf, 0.5, 1e18, 2.0**53])
)
whole = st.integers(-3, 500)
texts = st.lists(st.sampled_from(["LoRA", "this GPU"]), min_size=1).map(tuple)

Change = Callable[[Any], Any]
"""Of a phase or a page."""


def other(name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Change]:
    """Any other value of one field; the same NaN is another value."""
    return values.map(
        lambda value: lambda it: replace(it, **{name: value}) if getattr(it, name) != value else None
    )


PAGE: dict[str, st.SearchStrategy[Change]] = {
    "rank": other("rank", whole),
    "runtime": other("runtime", words),
    "vllm": other("vllm", words),
    "known_build": other("known_build", st.just(False)),
    "platform": other("platform", words),
    "decode_backend": other("decode_backend", words),
    "max_rows": other("max_rows", whole),
    "query_len": other("query_len", whole),
    "refused": other("refused", texts),
    "unavailable": other("unavailable", texts),
    "workers": other("workers", whole),
    "engine": other("engine", whole),
    "pid": other("pid", whole),
    "started_at": other("started_at", numbers),
    "counts": st.builds(
        lambda key, count: lambda page: replace(page, counts={**page.counts, key: count}),
        st.sampled_from([SPECIALIZED, OVER, PREFILL, MIXED]),
        st.builds(StepCount, numbers, numbers, numbers),
    )
    | st.just(lambda page: replace(page, counts={})),
}
NO_EVIDENCE = {"graphs"}
"""What was captured is no count of what ran."""
PHASE: dict[str, st.SearchStrategy[Change]] = {
    "rows": other("rows", st.integers(-3, 3) | st.integers(9, 99)),
    "generated": other("generated", whole),
    "prompted": other("prompted", whole),
    "seconds": other("seconds", st.sampled_from([0.0, -1.0, math.nan, math.inf])),
    "served_generated": other("served_generated", numbers | st.none()),
    "served_prompted": other("served_prompted", numbers | st.none()),
    "busy_before": other("busy_before", st.just(True)),
    "before": st.sampled_from(
        [lambda p: replace(p, before=p.before[1:]), lambda p: replace(p, before=p.before * 2)]
    ),
    "after": st.sampled_from(
        [lambda p: replace(p, after=p.after[1:]), lambda p: replace(p, after=p.after * 2)]
    ),
}


def test_every_field_of_evidence_has_its_mutations() -> None:
    assert set(PAGE) | NO_EVIDENCE == {field.name for field in fields(WorkerPage)}
    assert set(PHASE) == {field.name for field in fields(Phase)}
    assert {field.name for field in fields(DriveEvidence)} == {"phases", "requested", "anchor_step_ms"}
    assert {field.name for field in fields(StepKey)} == {"path", "kind", "mode", "reason", "slots"}


def one_page(change: Change, rank: int, when: str) -> Change:
    def changed(p: Phase) -> Phase | None:
        pages = list(getattr(p, when))
        if rank >= len(pages) or (mutated := change(pages[rank])) is None:
            return None
        pages[rank] = mutated
        return replace(p, **{when: tuple(pages)})

    return changed


page_changes = st.builds(
    one_page, st.one_of(list(PAGE.values())), st.integers(0, 1), st.sampled_from(["before", "after"])
)
phase_changes = st.one_of(list(PHASE.values()))


def mutated(seen: DriveEvidence, index: int, change: Change) -> DriveEvidence:
    """The evidence with one drive changed; unchanged where the change changes nothing."""
    return in_drive(seen, index, lambda p: change(p) or p)


@RUNS
@given(st.integers(0, 1), page_changes | phase_changes, st.sampled_from([1, 8]))
def test_a_change_of_any_one_fact_ends_a_proof(index: int, change: Change, query: int) -> None:
    seen = good(ranks=2, query=query)
    changed = mutated(seen, index, change)
    if changed != seen:
        assert judge(changed).grade is not Grade.PROVED


def in_order(seen: DriveEvidence) -> DriveEvidence:
    def sort(p: Phase) -> Phase:
        return replace(
            p,
            before=tuple(sorted(p.before, key=lambda w: w.rank)),
            after=tuple(sorted(p.after, key=lambda w: w.rank)),
        )

    return replace(seen, phases=tuple(map(sort, seen.phases)))


COUNTED = ("served_generated", "served_prompted")
GOOD = [good(), good(query=8)]
BASES = [good(), good(query=8), good(known_build=False), good(workers=0), good(decode_backend="auto")]
BASES += [in_drive(good(), 1, change) for _, _, change, _ in CASES]
BASES += [in_drive(good(), i, lambda p: moved(p, SPECIALIZED, OVER)) for i in (0, 1)]


@RUNS
@given(st.sampled_from(BASES), st.integers(0, 1), page_changes | phase_changes)
def test_no_single_change_raises_a_grade(seen: DriveEvidence, index: int, change: Change) -> None:
    """Of good evidence, and of evidence that is already flawed in another place."""
    first = judge(seen)
    changed = mutated(seen, index, change)
    if changed.phases[index] == seen.phases[index] or in_order(changed) in GOOD:
        return  # nothing was changed, or just what was flawed
    hidden = {name for name in COUNTED if getattr(changed.phases[index], name) is None}
    if "other requests" in first.statement and any(
        getattr(seen.phases[index], n) is not None for n in hidden
    ):
        return  # nobody can be caught by a count that is not published: that is *consistent* at best
    if "counts what cannot be" in first.statement and changed.phases[index].rows > seen.phases[index].rows:
        return  # more requests of our own explain the count that was too high: another drive, judged as such
    second = judge(changed)
    assert RANKED[second.grade] <= RANKED[first.grade], (first, second)


@pytest.mark.parametrize("name", ["path", "kind", "reason", "slots"])
@pytest.mark.parametrize("value", ["standard", "specialized", "prefill", "mixed", "decode", "x", "stock", ""])
@pytest.mark.parametrize("index", [0, 1])
def test_a_change_of_what_all_ranks_counted_never_proves_more(name: str, value: str, index: int) -> None:
    key = replace(SPECIALIZED, **{name: value})
    if key == SPECIALIZED:
        return
    verdict = judge(in_drive(good(), index, lambda p: moved(p, SPECIALIZED, key)))
    # other slots of a specialized decode are still a specialized decode, and are named
    assert verdict.grade is not Grade.PROVED or (name == "slots" and value in verdict.statement)


@pytest.mark.parametrize(
    "changes",
    [
        {"query_len": 0}, {"max_rows": 0}, {"max_rows": 3}, {"workers": 0}, {"workers": 5}, {"known_build": False},
        {"decode_backend": ""}, {"refused": ("x",)}, {"unavailable": ("x",)}, {"engine": 1, "workers": 4},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("index", [0, 1])
def test_a_change_of_what_all_ranks_say_is_no_proof(changes: dict[str, Any], index: int) -> None:
    verdict = judge(in_drive(good(), index, lambda p: everywhere(p, **changes)))
    assert verdict.grade is not Grade.PROVED


KEYS = [
    SPECIALIZED,
    OVER,
    MIXED,
    PREFILL,
    StepKey("standard", "decode", "eager", "graph-not-specialized"),
    StepKey("specialized", "prefill", "full", ""),
    StepKey("specialized", "mixed", "full", ""),
    StepKey("specialized", "decode", "full", "", "stock"),
]


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[Step], list[Step]]:
    """Rows of a drive, the steps the server took, and those that its witness counted."""
    rows = draw(st.sampled_from([1, 2, 4, 32]))
    weights = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3))
    runs = draw(st.lists(st.tuples(st.sampled_from([SPECIALIZED, *weights]), st.integers(1, 40)), max_size=8))
    taken = [Step(PREFILL, rows, 8 * rows, rows)]
    for key, steps in runs:
        width = draw(st.integers(1, rows))
        yields = width if key.kind == "decode" else max(0, width - 1)
        taken += [Step(key, width, width, yields)] * steps
    lost = draw(st.sampled_from([0, 0, 0, 1, 5]))
    counted = list(taken)
    for _ in range(min(lost, len(counted) - 1)):
        counted.pop(draw(st.integers(0, len(counted) - 1)))
    return rows, taken, counted


def proves(rows: int, taken: Sequence[Step], counted: Sequence[Step]) -> bool:
    """The truth of it, from the steps themselves."""
    alone = [step for step in taken if step.key.kind == "decode"]
    fast = [step for step in alone if step.key.path == "specialized" and step.key.slots != "stock"]
    mixed = sum(step.key.kind == "mixed" for step in taken)
    if any(step.key.path == "specialized" and step.key.kind != "decode" for step in counted):
        return False
    shown = sum(s.rows for s in counted if s.key.kind != "prefill")
    covered = shown >= sum(s.generated for s in taken) - rows
    return bool(alone) and covered and len(fast) >= PROVED_SHARE * (len(alone) + max(0, mixed - rows)) - 5


@settings(max_examples=400, deadline=None, print_blob=True)
@given(histories(), histories())
def test_whatever_steps_a_server_takes_proved_is_true(
    one: tuple[int, list[Step], list[Step]], two: tuple[int, list[Step], list[Step]]
) -> None:
    phases = []
    for rows, taken, counted in (one, two):
        shown = phase(rows, counted, ranks=2)
        generated = sum(step.generated for step in taken)
        phases.append(replace(shown, generated=generated, served_generated=float(generated)))
    verdict = judge(evidence(*phases))
    if verdict.grade is Grade.PROVED:
        assert all(proves(*history) for history in (one, two)), verdict
        for (rows, taken, counted), drive in zip((one, two), verdict.drives, strict=True):
            assert taken or rows
            fast = sum(s.key == SPECIALIZED for s in counted)
            assert drive.specialized == fast


@given(st.integers(1, 4), st.sampled_from([2, 4, 8, 16]), st.sampled_from([1, 2, 8]), st.integers(17, 64))
@settings(max_examples=60, deadline=None, print_blob=True)
def test_good_evidence_is_a_proof(ranks: int, rows: int, query: int, tokens: int) -> None:
    rows = min(rows, 64 // query)
    assert judge(good(ranks=ranks, rows=rows, tokens=tokens, query=query)).grade is Grade.PROVED


def test_five_percent_of_other_steps_are_the_limit() -> None:
    for slow, grade in ((2, Grade.PROVED), (3, Grade.NOT_ENGAGED)):
        steps = [Step(PREFILL, 1, 8, 1), *decodes(1, slow, key=OVER), *decodes(1, 47 - slow)]
        assert judge(evidence(phase(1, steps))).grade is grade
