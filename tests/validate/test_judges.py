"""The judges of single checks: what is right passes, every way to be wrong fails, what is not there is unknown."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from k3ctl.canary import judge as shape
from k3ctl.canary.judge import Reply
from k3ctl.canary.prompts import PROMPTS
from k3ctl.validate import divergence
from k3ctl.validate.checks import canary, context, equality, requests, structured
from k3ctl.validate.divergence import Step
from k3ctl.validate.record import Outcome, not_run, passed

P, F, U, N = Outcome.PASSED, Outcome.FAILED, Outcome.UNKNOWN, Outcome.NOT_RUN
NATS = 1e-3


def run(words: str, *, shift: float = 0.0, rival: str = "z", margin: float = 1.0) -> tuple[Step, ...]:
    value = -0.5 + shift
    return tuple(Step(word, value, {word: value, rival: value - margin}) for word in words.split())


@pytest.mark.parametrize(
    ("one", "other", "outcome"),
    [
        (run("a b c d"), run("a b c d"), P),
        (run("a b c d"), run("a b c d", shift=9e-4), P),
        (run("a b c d"), run("a b c d", shift=2e-3), F),
        (run("a b c d"), run("a b x d"), F),
        (run("a b c d"), run("a b c"), F),
        (run("a b c d"), (), U),
        (run("a b c d", rival="x", margin=5e-4), run("a b x d", rival="c", margin=5e-4), P),
        (run("a b c d", rival="x", margin=0.5), run("a b x d", rival="c", margin=0.5), F),
        (run("a b c d"), run("a b c d", shift=float("nan")), F),
    ],
)
def test_answers_are_equal_up_to_near_ties(one: Any, other: Any, outcome: Outcome) -> None:
    assert equality.judge([(one, other)], NATS, "same").outcome is outcome
    good = (run("q r"), run("q r"))
    assert equality.judge([good, (one, other), good], NATS, "same").outcome is outcome
    assert equality.judge([(other, one)], NATS, "same").outcome is outcome


def test_the_first_divergence_and_its_margin_are_told() -> None:
    found = divergence.compare(run("a b c d", rival="x", margin=0.4), run("a b x d", rival="c", margin=0.3))
    assert (found.at, found.common) == (2, 2)
    assert found.margin == pytest.approx(0.3)
    assert "token 2 of 4" in found.told and "0.3 nats" in found.told


@pytest.mark.parametrize(("rows", "outcome"), [(8.0, P), (6.0, P), (5.9, U), (1.0, U), (None, P)])
def test_a_batch_that_did_not_form_shows_nothing(rows: float | None, outcome: Outcome) -> None:
    assert equality.judge_forced(passed("same"), 8, rows).outcome is outcome


@pytest.mark.parametrize(
    ("seen", "tries"), [([8.0], 1), ([None], 1), ([1.0, 6.0], 2), ([1.0, 1.0, 1.0], 3), ([5.9, 5.9, 8.0], 3)]
)
def test_a_batch_that_did_not_form_is_sent_again_and_every_answer_is_kept(
    seen: list[float | None], tries: int
) -> None:
    sent = iter(range(9))
    left = iter(seen)
    session: Any = SimpleNamespace(rows_during=lambda ask: (ask(), next(left)))
    answers, rows = equality.gathered(session, lambda: [next(sent)], 8)
    assert answers == [[n] for n in range(tries)] and rows == seen[-1]


@pytest.mark.parametrize(("hits", "outcome"), [(512.0, P), (0.0, U)])
def test_a_cache_that_was_not_hit_shows_nothing(hits: float, outcome: Outcome) -> None:
    assert equality.judge_hits(passed("same"), hits).outcome is outcome


A, B = run("a b c"), run("d e f", shift=-0.1)


@pytest.mark.parametrize(
    ("runs", "outcome"),
    [
        ([A, A, B, B, A], P),
        ([A, run("a x c"), B, B, A], F),
        ([A, A, B, run("d x f"), A], F),
        ([A, A, B, B, B], F),
        ([A, A, A, A, A], F),
        ([A, A, A, B, A], F),
        ([(), (), (), (), ()], U),
    ],
)
def test_a_stale_prefix_is_found(runs: Any, outcome: Outcome) -> None:
    assert canary.judge_prefix(runs, NATS).outcome is outcome


def reply(text: str = "fine words here", reasoning: str = "", finish: str = "stop", **more: Any) -> Reply:
    return Reply(
        text=text, reasoning=reasoning, completion_tokens=len(text.split()), finish_reason=finish, **more
    )


@pytest.mark.parametrize(
    ("replies", "outcome"),
    [
        ([reply(), reply(reasoning="so")], P),
        ([reply(), reply()], N),
        ([reply(), reply("so </think> fine")], F),
        ([reply(), reply("<|sep|> fine", "so")], F),
        ([reply(), reply("", "so")], F),
        ([reply("", "so", "length")], U),
    ],
)
def test_think_markers_leaked_or_lost_are_found(replies: list[Reply], outcome: Outcome) -> None:
    assert canary.judge_markers(replies, parser="kimi_k3").outcome is outcome
    assert canary.judge_markers(replies[::-1], parser=None).outcome is outcome


@pytest.mark.parametrize(
    ("replies", "outcome"),
    [
        ([reply()], P),
        ([reply(), reply("! " * 40)], F),
        ([reply(), reply("so it goes " * 30)], F),
        ([reply("")], F),
        ([], U),
    ],
)
def test_floods_are_found_among_good_answers(replies: list[Reply], outcome: Outcome) -> None:
    assert canary.judge_shape(replies, random_weights=False).outcome is outcome


def answered(*rights: bool | None) -> list[Any]:
    texts = {True: ("7753", "stop"), False: ("no", "stop"), None: ("77", "length")}
    return [
        shape.judge(PROMPTS[0], reply(texts[right][0], finish=texts[right][1]), content=True)
        for right in rights
    ]


@pytest.mark.parametrize(
    ("rights", "outcome"),
    [
        ([True] * 10, P),
        ([True] * 8 + [False] * 2, P),
        ([True] * 7 + [False] * 3, F),
        ([True] * 9 + [None], U),
        ([None] * 10, U),
        ([], U),
    ],
)
def test_right_answers_are_counted_and_cut_ones_say_nothing(
    rights: list[bool | None], outcome: Outcome
) -> None:
    assert canary.judge_answers(answered(*rights)).outcome is outcome


def call(arguments: Any, name: str = "set_lamp", id_: str = "1") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": id_, "function": {"name": name, "arguments": text}}


GOOD_CALL = call({"lamp": 3, "on": True})


@pytest.mark.parametrize(
    ("calls", "outcome"),
    [
        ([GOOD_CALL], P),
        ([call({"on": False, "lamp": 0})], P),
        ([], F),
        ([call({"lamp": 3})], F),
        ([call({"lamp": 30, "on": True})], F),
        ([call({"lamp": True, "on": True})], F),
        ([call({"lamp": 3, "on": True, "x": 1})], F),
        ([call("{lamp")], F),
        ([call({"lamp": 3, "on": True}, name="other")], F),
    ],
)
def test_forced_calls(calls: list[Any], outcome: Outcome) -> None:
    assert canary.judge_tool({"choices": [{"message": {"tool_calls": calls}}]}).outcome is outcome
    assert structured.judge_calls([calls, [GOOD_CALL]], several=False).outcome is outcome


def test_parallel_calls_have_ids_of_their_own_and_are_several() -> None:
    assert structured.judge_calls([[GOOD_CALL, GOOD_CALL]], several=True).outcome is F
    assert structured.judge_calls([[GOOD_CALL, {**GOOD_CALL, "id": "2"}]], several=True).outcome is P
    assert structured.judge_calls([[GOOD_CALL]], several=True).outcome is F


@pytest.mark.parametrize(
    ("drafted", "accepted", "outcome"), [(500, 100, P), (500, 500, F), (500, 0, F), (10, 10, U), (0, 0, U)]
)
def test_acceptance_of_all_or_none_is_a_fault(drafted: float, accepted: float, outcome: Outcome) -> None:
    assert canary.judge_acceptance(drafted, accepted).outcome is outcome


@pytest.mark.parametrize(
    ("named", "served", "outcome"),
    [
        ({"k3"}, 64.0, P),
        ({"k3"}, 80.0, P),
        ({"k3"}, 60.0, F),
        ({"k3"}, None, U),
        ({"k2"}, 64.0, F),
        ({"k3", "k2"}, 64.0, F),
    ],
)
def test_answers_of_another_server_are_found(named: set[str], served: float | None, outcome: Outcome) -> None:
    assert canary.judge_source("k3", named, 64, served).outcome is outcome


@pytest.mark.parametrize(
    ("texts", "outcome"),
    [
        (['{"ok": true, "color": "red", "n": 3}'], P),
        (['{"ok": true, "color": "red", "n": 3}', '{"ok": 1, "color": "red", "n": 3}'], F),
        (['{"ok": true, "color": "blue", "n": 3}'], F),
        (['{"ok": true, "color": "red", "n": 100}'], F),
        (['{"ok": true, "color": "red", "n": 3'], F),
        (["[]"], F),
    ],
)
def test_json_of_the_schema(texts: list[str], outcome: Outcome) -> None:
    assert canary.judge_json(texts).outcome is outcome


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("regex", "2026-11", "2026-11 "),
        ("grammar", "set red to 42", "set red to 02"),
        ("choice", "blue", "bluered"),
    ],
)
def test_forms_are_matched_as_a_whole(name: str, good: str, bad: str) -> None:
    form = structured.FORMS[name]
    assert structured.judge_form([good] * 4, form).outcome is P
    assert structured.judge_form([good, good, bad], form).outcome is F


TEXT = "one two three four five six seven"
CUT = {"text": "one two three ", "finish_reason": "stop", "stop_reason": "four"}


@pytest.mark.parametrize(
    ("cut", "kept", "outcome"),
    [
        ({}, {}, P),
        ({"text": TEXT}, {}, F),
        ({"text": "one two three fo"}, {}, F),
        ({"finish_reason": "length"}, {}, F),
        ({"stop_reason": None}, {}, F),
        ({}, {"text": "one two three "}, F),
    ],
)
def test_stop_strings(cut: dict[str, Any], kept: dict[str, Any], outcome: Outcome) -> None:
    left_in = {**CUT, "text": "one two three four", **kept}
    assert requests.judge_stop(TEXT, "four", {**CUT, **cut}, left_in).outcome is outcome
    assert requests.stop_in(TEXT) in TEXT[len(TEXT) // 4 :]
    assert requests.stop_in("1 2 3") == ""


def told(**change: Any) -> dict[str, Any]:
    good = {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.2, -0.1],
        "top_logprobs": [{"a": -0.2, "c": -2.0}, {"b": -0.1}],
    }
    return {**good, **change}


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, P),
        ({"tokens": ["a"]}, F),
        ({"token_logprobs": [-0.2, -0.3]}, F),
        ({"token_logprobs": [0.4, -0.1], "top_logprobs": [{"a": 0.4}, {"b": -0.1}]}, F),
        ({"top_logprobs": [{"a": -0.2, "c": -0.1}, {"b": -0.1}]}, F),
        ({"top_logprobs": [{"a": -0.2, "c": -0.3, "d": -0.3}, {"b": -0.1}]}, F),
        ({"top_logprobs": [{"c": -2.0}, {"b": -0.1}]}, F),
        ({"token_logprobs": [float("nan"), -0.1]}, F),
    ],
)
def test_log_probabilities(change: dict[str, Any], outcome: Outcome) -> None:
    assert requests.judge_logprobs(told(**change), 2).outcome is outcome


def test_log_probabilities_of_fewer_tokens_than_were_generated() -> None:
    assert requests.judge_logprobs(told(), 3).outcome is F
    assert requests.judge_logprobs({}, 0).outcome is F


@pytest.mark.parametrize(("cut", "running", "outcome"), [(3, 0.0, P), (0, 0.0, U), (3, 1.0, F), (3, None, U)])
def test_hanging_up(cut: int, running: float | None, outcome: Outcome) -> None:
    assert requests.judge_abort(passed("same"), cut, running).outcome is outcome


@pytest.mark.parametrize(
    ("runs", "read", "outcome"),
    [
        ((A, B), [500, 500], P),
        ((A, run("a b c", shift=-0.1)), [500, 500], P),
        ((A, A), [500, 500], F),
        ((A, B), [500, 499], F),
        ((A, B), [None, 500], F),
        (((), ()), [500, 500], U),
        ((run("x " * 24), run("x " * 24, shift=-0.1)), [500, 500], F),
    ],
)
def test_a_context_that_lost_its_start_is_found(runs: Any, read: list[Any], outcome: Outcome) -> None:
    assert context.judge_whole(runs, 500, read, 512).outcome is outcome


def test_a_start_that_rounding_may_hide_is_unknown_in_a_long_context() -> None:
    assert context.judge_whole((A, A), 100_000, [100_000, 100_000], 100_024).outcome is U


def event(content: str = "", finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": content, **delta}, "finish_reason": finish}]}


WHOLE = {
    "choices": [{"message": {"content": "ab", "reasoning": "so"}, "finish_reason": "stop"}],
    "usage": {"completion_tokens": 3},
}
USAGE = {"choices": [], "usage": {"completion_tokens": 3}}


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ([event(reasoning="so"), event("a"), event("b", "stop"), USAGE], P),
        ([event(reasoning="s"), event(reasoning="o"), event("ab", "stop"), USAGE], P),
        ([event("ab", "stop", reasoning="so"), USAGE], F),
        ([event(reasoning="so"), event("a"), event("", "stop"), USAGE], F),
        ([event("so"), event("ab", "stop"), USAGE], F),
        ([event(reasoning="so"), event("ab", "length"), USAGE], F),
        ([event(reasoning="so"), event("ab"), USAGE], F),
        ([event(reasoning="so"), event("a"), event("b", "stop")], F),
    ],
)
def test_streams(events: list[Any], outcome: Outcome) -> None:
    assert equality.judge_stream(WHOLE, events).outcome is outcome


@pytest.mark.parametrize(("found", "outcome"), [([True] * 3, P), ([True, False, True], F), ([False] * 3, F)])
def test_needles(found: list[bool], outcome: Outcome) -> None:
    assert context.judge_needle(found, ["x"] * 3, 900, 50).outcome is outcome


def test_a_token_read_again_is_compared_with_the_likeliest_of_its_place() -> None:
    step = Step("token_id:7", -0.5, {})
    same = equality.read_again(step, {"7": {"logprob": -0.5}, "9": {"logprob": -2.0}})
    assert (same.token, same.logprob) == ("token_id:7", -0.5)
    other = equality.read_again(step, {"7": {"logprob": -2.0}, "9": {"logprob": -0.5}})
    assert other.token == "token_id:9"
    assert not divergence.compare([step], [other]).agrees(NATS)
    assert not divergence.compare([step], [equality.read_again(step, {})]).agrees(NATS)


def test_a_tie_read_again_is_ours() -> None:
    step = Step("token_id:7", -0.5, {})
    assert equality.read_again(step, {"9": {"logprob": -0.5}, "7": {"logprob": -0.5}}).token == step.token


def test_what_was_not_run_stays_that() -> None:
    assert equality.judge_forced(not_run("why"), 8, 1.0).outcome is N
    assert replace(not_run("why"), statement="other").outcome is N
