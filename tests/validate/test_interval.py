"""What an interval's counters make of a pass: on the path it stands, else it is void or unknown, never passed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from k3ctl.server.witness import StepKey
from k3ctl.validate import interval
from k3ctl.validate.interval import Seen, Standing
from k3ctl.validate.record import Check, Judged, Outcome, failed, not_run, passed, unknown
from k3ctl.validate.settle import settle
from k3ctl.verdict.evidence import Phase
from tests.verdict import served

ANY = Check("features.any", "anything", lambda _: passed(""))
GOOD = passed("as it should be")


def outcome(seen: Seen, judged: Judged = GOOD, check: Check = ANY) -> Outcome:
    return settle(check, judged, interval.read(seen)).outcome


def seen(phase: Phase, **more: Any) -> Seen:
    return Seen(phase, peak=phase.rows, **more)


def drive(rows: int = 4, **about: Any) -> Phase:
    return served.phase(rows, served.drive(rows), **about)


@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_pass_on_the_claimed_path_stands(ranks: int, rows: int) -> None:
    record = interval.read(seen(drive(rows, ranks=ranks)))
    assert record.standing is Standing.ON_PATH
    assert record.batch == rows
    assert outcome(seen(drive(rows, ranks=ranks))) is Outcome.PASSED


def test_standard_steps_are_right_where_standard_was_asked_for_and_void_where_not() -> None:
    key = StepKey("standard", "decode", "full", "backend-off")
    steps = served.drive(4, key=key)
    standard = served.phase(4, steps, decode_backend="auto")
    assert outcome(seen(standard)) is Outcome.PASSED
    fell_back = served.phase(4, served.drive(4, key=served.OVER))
    assert outcome(seen(fell_back)) is Outcome.VOID
    assert "rows-over-limit" in interval.read(seen(fell_back)).reason


def test_a_few_standard_steps_void_it_and_prefills_do_not() -> None:
    steps = [*served.drive(4), *served.decodes(4, 10, key=served.OVER)]
    assert outcome(seen(served.phase(4, steps))) is Outcome.VOID
    prefills = [served.Step(served.PREFILL, 1, 8, 0)] * 50
    assert outcome(seen(served.phase(4, [*prefills, *served.drive(4)]))) is Outcome.PASSED


def test_specialized_steps_whose_slots_are_all_stock_are_no_specialized_steps() -> None:
    key = replace(served.SPECIALIZED, slots="stock")
    assert outcome(seen(served.phase(2, served.drive(2, key=key)))) is Outcome.VOID


def test_only_prefills_make_a_pass_void_unless_the_check_is_not_about_decodes() -> None:
    phase = served.phase(3, [served.Step(served.PREFILL, 3, 24, 3)])
    assert outcome(seen(phase)) is Outcome.VOID
    assert outcome(seen(phase), check=replace(ANY, decodes=False)) is Outcome.PASSED


@pytest.mark.parametrize(
    "change",
    [
        {"before": (), "after": ()},
        {"after": ()},
        {"busy_before": True},
        {"served_generated": 1000.0},
        {"served_prompted": 1000.0},
        {"served_generated": 10.0},
        {"served_generated": None},
        {"served_prompted": None},
        {"rows": 0},
    ],
    ids=str,
)
def test_what_cannot_be_seen_is_unknown_never_passed(change: dict[str, Any]) -> None:
    assert outcome(seen(replace(drive(), **change))) is Outcome.UNKNOWN


@pytest.mark.parametrize(
    "about",
    [
        {"known_build": False},
        {"known_build": False, "vllm": ""},
        {"workers": 0},
        {"decode_backend": "auto"},
        {"query_len": 0},
    ],
    ids=str,
)
def test_a_witness_that_contradicts_itself_or_does_not_say_is_unknown(about: dict[str, Any]) -> None:
    assert outcome(seen(drive(**about))) is Outcome.UNKNOWN


def test_a_restarted_worker_and_a_missing_rank_are_unknown() -> None:
    phase = drive(ranks=2)
    other = replace(phase.after[0], pid=999)
    assert outcome(seen(replace(phase, after=(other, *phase.after[1:])))) is Outcome.UNKNOWN
    assert outcome(seen(replace(phase, after=phase.after[:1]))) is Outcome.UNKNOWN


def test_tokens_of_aborted_requests_widen_what_may_be_there_and_no_further() -> None:
    phase = replace(drive(), served_generated=4 * 48 + 20.0)
    assert outcome(seen(phase)) is Outcome.UNKNOWN
    assert outcome(seen(phase, open_requests=1, open_tokens=20.0)) is Outcome.PASSED
    assert outcome(seen(phase, open_requests=1, open_tokens=19.0)) is Outcome.UNKNOWN


@pytest.mark.parametrize("judged", [failed("wrong"), unknown("?"), not_run("why")])
def test_only_a_pass_needs_evidence_of_its_path(judged: Judged) -> None:
    assert outcome(seen(replace(drive(), after=())), judged) is judged.outcome
