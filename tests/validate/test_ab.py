"""Two sides: what agrees, what parts, and the rule of the near tie; with toy servers, and by what must not matter."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3ctl.errors import UsageError
from k3ctl.knownbad import proxy
from k3ctl.knownbad.modes import MODES
from k3ctl.server.client import Client
from k3ctl.validate import runner, sides, state
from k3ctl.validate.checks import ab
from k3ctl.validate.divergence import Step
from k3ctl.validate.facts import Facts
from k3ctl.validate.record import Outcome, Result
from k3ctl.validate.session import Session
from tests.knownbad import scripted
from tests.knownbad.toy import ALPHABET, Toy

NATS = 0.01
CHECKS = {check.name: check for check in ab.CHECKS}


def step(token: str, logprob: float = -0.5, **top: float) -> Step:
    return Step(token, logprob, {token: logprob, **top})


def text(said: str, shift: float = 0.0) -> tuple[Step, ...]:
    return tuple(step(char, -0.5 + shift) for char in said)


def parting(said: str, at: int, margin: float) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """Two answers that part at ``at``, where either token is likelier than the other's by ``margin``."""
    one, other = list(text(said)), list(text(said))
    one[at], other[at] = step("X", -0.5, Y=-0.5 - margin), step("Y", -0.5, X=-0.5 - margin)
    return tuple(one), tuple(other)


Pairs = Sequence[tuple[Sequence[Step], Sequence[Step]]]


def judged(pairs: Pairs) -> tuple[Outcome, dict[str, Any]]:
    mine, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    found = sides.agreement(mine, theirs, NATS)
    return sides.judge_tokens(found).outcome, found.json()


EQUAL = (text("the same answer"), text("the same answer"))
TIE = parting("nearly the same", 7, NATS / 2)
REAL = parting("not the same", 4, 50 * NATS)
SHORTER = (text("cut off"), text("cut"))


@pytest.mark.parametrize(
    ("pairs", "outcome"),
    [
        ([EQUAL], Outcome.PASSED),
        ([EQUAL, TIE], Outcome.PASSED),
        ([EQUAL, TIE, REAL], Outcome.FAILED),
        ([SHORTER], Outcome.FAILED),
        ([], Outcome.UNKNOWN),
        ([EQUAL, ((), ())], Outcome.UNKNOWN),
        ([EQUAL, (text("told"), ())], Outcome.UNKNOWN),
    ],
)
def test_answers_must_be_equal_but_for_near_ties(pairs: Pairs, outcome: Outcome) -> None:
    assert judged(pairs)[0] is outcome


def test_a_real_divergence_is_told_with_its_place_and_margin() -> None:
    said = sides.judge_tokens(sides.agreement([REAL[0]], [REAL[1]], NATS))
    assert "prompt 0" in said.statement and "token 4" in said.statement and "0.5 nats" in said.statement
    (parted,) = said.evidence["parted"]
    assert (parted["first_divergence"], parted["margin_nats"]) == (4, 0.5)


def test_a_token_that_the_other_side_does_not_even_name_is_no_near_tie() -> None:
    one, other = text("abc"), (*text("ab"), step("Z"))
    assert judged([(one, other)])[0] is Outcome.FAILED


answers = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.floats(-4, -0.01), st.floats(0, 3 * NATS)), min_size=1, max_size=8
)


@st.composite
def pair(draw: st.DrawFn) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """A random answer and a variant: log probabilities moved, perhaps parted at some token by some margin."""
    drawn = draw(answers)
    one = [step(token, logprob) for token, logprob, _ in drawn]
    other = [step(token, logprob - moved) for token, logprob, moved in drawn]
    if draw(st.booleans()):
        at, margin = draw(st.integers(0, len(one) - 1)), draw(st.sampled_from([0, NATS / 2, NATS * 2, 1.0]))
        one[at] = step("X", -0.5, Y=-0.5 - margin)
        other[at] = step("Y", -0.5, X=-0.5 - margin)
    return tuple(one), tuple(other)


@settings(max_examples=50, deadline=None)
@given(st.lists(pair(), min_size=1, max_size=6), st.randoms())
def test_what_must_not_matter_does_not(pairs: list[Any], source: Any) -> None:
    outcome, told = judged(pairs)
    swapped = judged([(b, a) for a, b in pairs])
    shuffled = list(pairs)
    source.shuffle(shuffled)
    doubled = judged([*pairs, *pairs])
    for other, _ in (swapped, judged(shuffled), doubled):
        assert other is outcome
    for name in ("token_agreement", "near_ties", "real_divergences", "delta_nats", "common_tokens"):
        assert swapped[1][name] == judged(shuffled)[1][name] == told[name]
    assert doubled[1]["token_agreement"] == told["token_agreement"]
    assert doubled[1]["real_divergences"] == 2 * told["real_divergences"]
    assert doubled[1]["delta_nats"]["p100"] == told["delta_nats"]["p100"]


@settings(max_examples=50, deadline=None)
@given(st.lists(pair(), min_size=2, max_size=6), st.data())
def test_dropping_a_prompt_never_makes_it_worse_and_adding_an_equal_one_neither(
    pairs: list[Any], data: Any
) -> None:
    outcome, _ = judged(pairs)
    dropped = data.draw(st.integers(0, len(pairs) - 1))
    left = [one for place, one in enumerate(pairs) if place != dropped]
    if outcome is Outcome.PASSED:
        assert judged(left)[0] is Outcome.PASSED
    assert judged([*pairs, EQUAL])[0] is outcome
    assert judged([*pairs, REAL])[0] is Outcome.FAILED


@settings(max_examples=50, deadline=None)
@given(st.lists(pair(), min_size=1, max_size=5), st.floats(0.001, 2.0))
def test_a_larger_tolerance_never_finds_more(pairs: list[Any], nats: float) -> None:
    mine, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    less, more = (sides.agreement(mine, theirs, width) for width in (nats, 2 * nats))
    assert len(more.real) <= len(less.real)
    if sides.judge_logprobs(less).outcome is Outcome.PASSED:
        assert sides.judge_logprobs(more).outcome is Outcome.PASSED


@pytest.mark.parametrize("shift", [0.0, NATS / 2, -NATS / 2, 2 * NATS, -2 * NATS, math.nan, math.inf])
def test_log_probabilities_far_apart_fail_whatever_the_direction(shift: float) -> None:
    for one, other in ((text("abc"), text("abc", shift)), (text("abc", shift), text("abc"))):
        outcome = sides.judge_logprobs(sides.agreement([one], [other], NATS)).outcome
        assert (outcome is Outcome.PASSED) == (abs(shift) <= NATS)


def test_a_drift_shows_in_the_last_quarter_and_fails_when_it_is_large() -> None:
    still = text("a" * 40)
    drifting = tuple(replace(one, logprob=one.logprob - place * 1e-3) for place, one in enumerate(still))
    assert sides.judge_long([still], [still], NATS).outcome is Outcome.PASSED
    said = sides.judge_long([still], [drifting], NATS)
    assert said.outcome is Outcome.FAILED
    ((first, last),) = said.evidence["first_and_last_quarter_nats"]
    assert last > 5 * first


@settings(max_examples=30, deadline=None)
@given(st.lists(pair(), min_size=1, max_size=4))
def test_kept_answers_are_read_back_as_they_were(pairs: list[Any]) -> None:
    mine = [a for a, _ in pairs]
    again = sides.read(sides.kept(mine))
    assert sides.agreement(mine, again, 1e-6).parted == ()
    assert [[s.token for s in answer] for answer in again] == [[s.token for s in answer] for answer in mine]


@pytest.mark.parametrize(
    "token", ["token_id:0", "token_id:163839", "token_id:", "token_id:x", "-token", "", "7"]
)
def test_a_token_is_kept_by_its_id_where_it_is_told_so(token: str) -> None:
    answer = (Step(token, -0.5, {token: -0.5, "token_id:5": -0.75}),)
    kept = sides.kept([answer])
    assert sides.read(json.loads(json.dumps(kept))) == [answer]
    assert isinstance(kept[0][0][0], int) == token.removeprefix("token_id:").isdecimal() * (token != "7")
    assert kept[0][0][2][1] == [5, -0.75]


@pytest.mark.parametrize(
    "damaged", [None, {}, [[1]], [[["a"]]], [[["a", "x", []]]], [[["a", -1.0, [["b"]]]]], ["abc"]]
)
def test_damaged_answers_are_refused(damaged: Any) -> None:
    with pytest.raises(ValueError):
        sides.read(damaged)


def test_prompts_are_the_same_for_a_seed_and_differ_from_their_first_word_on() -> None:
    some = list(sides.prompts(64, 24, 5))
    assert some == list(sides.prompts(64, 24, 5)) != list(sides.prompts(64, 24, 6))
    assert len({" ".join(prompt.split()[:2]) for prompt in some}) == 64
    assert all(24 <= len(prompt.split()) <= 48 for prompt in some)


# against servers


def rounding(scale: float) -> Any:
    """A rounding error: the same for the same context, about ``scale`` of a logit."""

    def error(context: str, char: str) -> float:
        digest = hashlib.blake2b(f"{context}{char}r".encode(errors="surrogateescape"), digest_size=2).digest()
        return scale * (int.from_bytes(digest, "big") / 32768 - 1)

    return error


@contextmanager
def sessions(*toys: Toy, modes: Sequence[str | None] = (), **facts: Any) -> Iterator[Session]:
    """A session on the first toy, with the second as its other side."""
    with ExitStack() as stack:
        urls = [stack.enter_context(scripted.serve(toy)).url for toy in toys]
        for place, mode in enumerate(modes):
            urls[place] = stack.enter_context(proxy.serve(urls[place], MODES[mode] if mode else None))
        clients = [Client(url) for url in urls]
        known = Facts(
            **{"model": "toy", "platform": "cpu", "max_model_len": 96, "random_weights": True, **facts}
        )
        other = Session(clients[1], known) if len(clients) > 1 else None
        yield Session(clients[0], known, other=other)
        for client in clients:
            client.close()


TWO_SIDED = ("ab.tokens", "ab.logprobs", "ab.long")


def outcomes(session: Session, names: Sequence[str] = TWO_SIDED) -> dict[str, Result]:
    return {name: runner.one(session, CHECKS[name]) for name in names}


def test_two_equal_servers_agree_and_their_steps_are_accounted_for() -> None:
    with sessions(Toy(), Toy()) as session:
        for name, result in outcomes(session).items():
            assert result.outcome is Outcome.PASSED, (name, result.statement)
            assert result.interval is not None and result.interval["decode_steps"] > 0


@pytest.mark.parametrize(("scale", "found"), [(1e-5, set()), (0.3, {"ab.tokens", "ab.logprobs", "ab.long"})])
def test_a_planted_rounding_error_is_found_with_its_margin_once_it_is_no_rounding(
    scale: float, found: set[str]
) -> None:
    with sessions(Toy(), Toy(error=rounding(scale))) as session:
        results = outcomes(session)
    assert {name for name, result in results.items() if result.outcome is Outcome.FAILED} == found
    if found:
        parted = results["ab.tokens"].evidence["parted"]
        assert parted and all(0 <= one["first_divergence"] < ab.TOKENS_LENGTH for one in parted)
        assert all(one["margin_nats"] is None or one["margin_nats"] <= 2 * scale for one in parted)


def test_damaged_logits_behind_one_side_are_found_by_the_log_probabilities() -> None:
    with sessions(Toy(), Toy(), modes=(None, "logits")) as session:
        results = outcomes(session)
    assert results["ab.logprobs"].outcome is Outcome.FAILED


def test_another_model_and_a_lost_path_are_never_a_pass() -> None:
    with sessions(Toy(), Toy(error=rounding(5.0))) as session:
        assert all(result.outcome is Outcome.FAILED for result in outcomes(session).values())
    for modes in (("fallback", None), (None, "fallback")):
        with sessions(Toy(), Toy(), modes=modes) as session:
            result = outcomes(session, ["ab.logprobs"])["ab.logprobs"]
            assert result.outcome is Outcome.VOID
            assert ("the other side" in result.statement) == (modes[0] is None)


def test_one_server_on_both_sides_proves_nothing() -> None:
    with sessions(Toy()) as session:
        session.other = session
        assert all(result.outcome is Outcome.NOT_RUN for result in outcomes(session).values())


def keep(directory: Path, results: dict[str, Result]) -> None:
    plan = state.Plan(("ab",), tuple(results), {}, {}, {}, 0.0)
    begun = state.begin(directory, plan)
    for result in results.values():
        begun.add(result)


def test_a_validation_is_the_other_side_of_a_later_one(tmp_path: Path) -> None:
    with sessions(Toy()) as session:
        alone = outcomes(session)
    assert all(result.outcome is Outcome.UNKNOWN for result in alone.values())
    keep(tmp_path / "before", alone)
    for toy, expected in ((Toy(), Outcome.PASSED), (Toy(error=rounding(0.3)), Outcome.FAILED)):
        with sessions(toy) as session:
            session.options = {"against": str(tmp_path / "before")}
            assert {result.outcome for result in outcomes(session).values()} == {expected}


def test_an_earlier_validation_that_is_no_other_side_says_why(tmp_path: Path) -> None:
    with sessions(Toy()) as session:
        sound = outcomes(session, ["ab.logprobs"])["ab.logprobs"]
        off = replace(sound, interval={**(sound.interval or {}), "standing": "not on the claimed path"})
        cases = {
            "steps": off,
            "other prompts": replace(sound, evidence={**sound.evidence, "asked": "0"}),
            "damaged": replace(sound, evidence={**sound.evidence, "answers": [[1]]}),
            "has no": replace(sound, check="ab.other"),
        }
        for word, result in cases.items():
            keep(tmp_path / word, {result.check: result})
            session.options = {"against": str(tmp_path / word)}
            again = runner.one(session, CHECKS["ab.logprobs"])
            assert again.outcome is Outcome.UNKNOWN and word in again.statement
        session.options = {"against": str(tmp_path / "nowhere")}
        assert runner.one(session, CHECKS["ab.logprobs"]).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("given", ["abc", "0", "-1", "nan", "inf", ""])
def test_an_option_that_is_no_number_is_refused(given: str) -> None:
    with sessions(Toy(), Toy()) as session:
        session.options = {"nats": given}
        with pytest.raises(UsageError, match="nats"):
            runner.one(session, CHECKS["ab.logprobs"])


# one prompt in many batches


def dependent(alone: int) -> Any:
    """From the ``alone``-th logit on another function: what a kernel that depends on the batch looks like."""
    asked = {"logits": 0}

    def error(_: str, char: str) -> float:
        asked["logits"] += 1
        return 3.0 * (char == "e") * (asked["logits"] > alone)

    return error


def test_a_batch_that_changes_the_answer_is_found() -> None:
    alone = ab.PROBES * ab.BATCH_LENGTH * len(ALPHABET)
    with sessions(Toy(error=dependent(alone))) as session:
        found = ab.batch(8, session)
    assert found.outcome is Outcome.FAILED and found.evidence["batch"] == 8


def filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy answers one request at a time; here it says that it held them all."""
    monkeypatch.setattr(Session, "rows_during", lambda self, send: (send(), 64.0))


def test_a_prompt_is_answered_alone_as_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    filled(monkeypatch)
    with sessions(Toy()) as session:
        for size in (2, 8):
            assert ab.batch(size, session).outcome is Outcome.PASSED


def test_a_batch_that_the_server_cannot_hold_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    filled(monkeypatch)
    with sessions(Toy(), max_num_seqs=16) as session:
        assert ab.batch(64, session).outcome is Outcome.NOT_RUN
        assert ab.batch(8, session).outcome is Outcome.PASSED


def test_requests_that_did_not_run_together_show_nothing_of_a_batch() -> None:
    with sessions(Toy()) as session:
        result = runner.one(session, CHECKS["ab.batch.8"])
    assert result.outcome is Outcome.UNKNOWN and "at a time" in result.statement
