"""The output directory: every result is kept at once, found again, and never mixed with another server's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from k3ctl.errors import UsageError
from k3ctl.validate import state
from k3ctl.validate.facts import Facts
from k3ctl.validate.record import Outcome, Result
from k3ctl.validate.state import Plan

FACTS = Facts(
    "kimi-k3", max_model_len=4096, draft_tokens=3, parallel=(8, 1, 1), launch={"arguments": {"a": 1}}
)


def plan(facts: Facts = FACTS, **change: object) -> Plan:
    made = Plan(("canary",), ("canary.a", "canary.b"), {"limit": "3"}, {}, {facts.key: facts.json()}, 1.7e9)
    return replace(made, **change)


def kept(check: str, server: str = FACTS.key) -> Result:
    return Result(check, "shows", Outcome.PASSED, "fine", {"n": 1}, None, 1.7e9, 0.5, server)


def test_results_are_there_again_after_a_new_start(tmp_path: Path) -> None:
    first = state.begin(tmp_path / "o", plan())
    first.add(kept("canary.a"))
    again = state.resume(tmp_path / "o", plan(created_at=1.8e9))
    assert again.results == (kept("canary.a"),)
    assert again.has("canary.a", FACTS.key) and not again.has("canary.b", FACTS.key)
    assert not again.has("canary.a", "another server")


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_line_that_broke_off_loses_only_itself(tmp_path: Path, cut: int) -> None:
    first = state.begin(tmp_path / "o", plan())
    first.add(kept("canary.a"))
    first.add(kept("canary.b"))
    path = tmp_path / "o" / "raw" / state.RESULTS
    path.write_bytes(path.read_bytes()[:-cut])
    again = state.resume(tmp_path / "o", plan())
    assert [r.check for r in again.results] == ["canary.a"]
    again.add(kept("canary.b"))
    assert [r.check for r in state.load(tmp_path / "o")[1]] == ["canary.a", "canary.b"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"max_model_len": 8192}, "max_model_len"),
        ({"draft_tokens": 0}, "draft_tokens"),
        ({"parallel": (4, 1, 1)}, "parallel"),
        ({"vllm": "0.34"}, "vllm"),
        ({"launch": {"arguments": {"a": 2}}}, "launch.arguments.a"),
    ],
)
def test_another_server_is_refused_and_told_why(tmp_path: Path, change: dict, word: str) -> None:
    state.begin(tmp_path / "o", plan())
    with pytest.raises(UsageError) as error:
        state.resume(tmp_path / "o", plan(replace(FACTS, **change)))
    assert any(word in reason for reason in error.value.reasons)


def test_other_settings_are_refused(tmp_path: Path) -> None:
    state.begin(tmp_path / "o", plan())
    for change in (
        {"tiers": ("features",)},
        {"options": {}},
        {"checks": ("canary.a",)},
        {"matrix": {"batch": [1]}},
    ):
        with pytest.raises(UsageError, match="begun with something else"):
            state.resume(tmp_path / "o", plan(**change))


def test_nothing_is_overwritten_and_nothing_is_made_up(tmp_path: Path) -> None:
    state.begin(tmp_path / "o", plan())
    with pytest.raises(UsageError, match="exists already"):
        state.begin(tmp_path / "o", plan())
    with pytest.raises(UsageError, match="no validation plan"):
        state.resume(tmp_path / "nowhere", plan())
    (tmp_path / "o" / "raw" / state.RESULTS).write_text('{"check": "canary.a"}\n')
    with pytest.raises(UsageError, match="line 1 is damaged"):
        state.resume(tmp_path / "o", plan())


def test_any_answer_of_a_model_can_be_kept_and_read_again(tmp_path: Path) -> None:
    first = state.begin(tmp_path / "o", plan())
    evidence = {
        "delta": float("inf"),
        "nested": [{"p": float("nan")}],
        "text": "half \ud83d of it\n\u2028",
        3: "x",
    }
    first.add(replace(kept("canary.a"), statement="said \ud800", evidence=evidence))
    first.add(kept("canary.b"))
    found = state.resume(tmp_path / "o", plan()).results
    assert [r.check for r in found] == ["canary.a", "canary.b"]
    assert found[0].evidence["delta"] == "inf"
