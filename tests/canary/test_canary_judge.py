"""What counts as text: changed answers, not known ones."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3ctl.canary.judge import Fault, Health, Reply, health, judge, longest_run, loop
from k3ctl.canary.prompts import PROMPTS

RIGHT = {
    "sum": "7753",
    "product": "391",
    "capital": "Canberra.",
    "reverse": "maerts",
    "count": "1 2 3 4 5 6 7 8 9 10 11 12",
    "copy": "violet-otter-58-kelvin-harbor-203",
    "translate": "fromage",
    "sort": "apple, fig, lemon, pear",
    "python": "10",
    "needle": "Nickel",
}
ESSAY = (
    "The harbour opens to the east, so mornings are bright and the afternoons are mild. Fishing boats leave before "
    "five and come back at noon; the market on the quay sells what they bring. Behind it three streets climb to the "
    "church, and from its tower one sees both lighthouses, the salt pans, and on clear days the far island."
)


def faults(reply: Reply, **options: bool) -> set[Fault]:
    return {fault for fault, _ in judge(PROMPTS[0], reply, content=False, **options).faults}


def answered(text: str, **changes: Any) -> Reply:
    words = re.findall(r"\s*\S+", text)
    return dataclasses.replace(Reply(text, "", tuple(words), len(words), "stop"), **changes)


def test_right_answers_are_healthy_and_each_prompt_tells_right_from_wrong() -> None:
    results = [judge(p, answered(RIGHT[p.id]), content=True) for p in PROMPTS]
    assert health(results, content=True)[0] is Health.HEALTHY
    others = [judge(p, answered("I cannot say."), content=True) for p in PROMPTS]
    assert all(found.right is False for found in others)
    assert health(others, content=True)[0] is Health.SUSPECT


@pytest.mark.parametrize("wrong", range(11))
def test_two_wrong_answers_are_let_pass_and_three_are_not(wrong: int) -> None:
    answers = ["no idea" if i < wrong else RIGHT[p.id] for i, p in enumerate(PROMPTS)]
    results = [judge(p, answered(text), content=True) for p, text in zip(PROMPTS, answers, strict=True)]
    assert (health(results, content=True)[0] is Health.HEALTHY) == (wrong <= 2)


@pytest.mark.parametrize("token", ["!", " the", "0", "\n", "字", "<pad>"])
@pytest.mark.parametrize("told", [True, False], ids=["tokens told", "text only"])
def test_one_token_over_and_over_is_a_flood(token: str, told: bool) -> None:
    reply = Reply(token * 100, "", (token,) * 100 if told else (), 100, "length")
    assert faults(reply) & {Fault.FLOOD, Fault.EMPTY, Fault.LOOP}


@given(st.integers(0, 200), st.integers(16, 60))
def test_a_flood_anywhere_in_a_good_text_is_seen(at: int, length: int) -> None:
    words = re.findall(r"\s*\S+", ESSAY)
    at %= len(words)
    flooded = [*words[:at], *(["!"] * length), *words[at:]]
    assert Fault.FLOOD in faults(Reply("".join(flooded), "", tuple(flooded), len(flooded), "stop"))


@given(st.lists(st.sampled_from(["alpha", "beta", "gamma", "delta", "one", "two"]), min_size=2, max_size=20))
def test_a_passage_that_repeats_to_the_end_is_a_loop_or_a_flood(passage: list[str]) -> None:
    units = ESSAY.split() + passage * 40
    found = faults(Reply(" ".join(units), "", tuple(units), len(units), "length"))
    assert found & {Fault.LOOP, Fault.FLOOD}


def test_text_lists_code_tables_and_rules_are_no_flood_and_no_loop() -> None:
    code = "def f(x):\n" + "".join(f"    if x == {i}:\n        return {i * i}\n" for i in range(20))
    table = "| a | b |\n|---|---|\n" + "".join(f"| {i} | {i * 7 % 13} |\n" for i in range(20))
    rule = "Title\n" + "=" * 12 + "\n" + ESSAY
    for text in (ESSAY, code, table, rule, " ".join(map(str, range(200))), *RIGHT.values()):
        assert faults(answered(text)) == set(), text[:40]
        assert faults(Reply(text, "", (), 0, "stop")) == set(), text[:40]


@pytest.mark.parametrize(
    "marker",
    [
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        "<|close|>",
        "<|sep|>",
        "<think>",
        "</think>",
        "<|think|>",
        "◁/think▷",
    ],
)
def test_a_think_marker_in_the_answer_was_lost_by_the_parser(marker: str) -> None:
    assert Fault.MARKER in faults(answered(f"Let me see. {marker} 7753"))
    assert faults(Reply("7753", f"{marker} so it is", (), 5, "stop")) == set()


def test_tokens_without_text_and_bytes_that_are_no_characters() -> None:
    assert faults(Reply("", "", (), 40, "length")) == {Fault.EMPTY}
    garbage = answered("a\ufffdb\ufffdc\ufffd d e f")
    assert Fault.UNDECODABLE in faults(garbage)
    assert Fault.UNDECODABLE not in faults(garbage, random_weights=True)


def test_no_answer_at_all_is_unknown_and_a_part_of_them_suspect_never_healthy() -> None:
    silent = [judge(p, Reply(error="refused"), content=True) for p in PROMPTS]
    good = [judge(p, answered(RIGHT[p.id]), content=True) for p in PROMPTS]
    assert health(silent, content=True)[0] is Health.UNKNOWN
    assert health([*silent[:1], *good[1:]], content=True)[0] is Health.SUSPECT
    assert health([], content=True)[0] is Health.UNKNOWN
    assert health(good, content=False)[0] is Health.UNKNOWN


def test_an_answer_that_was_cut_is_not_judged_and_not_healthy() -> None:
    cut = [judge(p, answered("Let me think", finish_reason="length"), content=True) for p in PROMPTS]
    assert {found.right for found in cut} == {None}
    assert health(cut, content=True)[0] is Health.SUSPECT


def test_runs_and_periods() -> None:
    assert longest_run(["a", "b", "b", "b", "a"]) == (3, "b")
    assert longest_run([]) == (0, "")
    assert loop(["x", "y"] * 40) == 2
    assert loop([str(i) for i in range(100)]) == 0
