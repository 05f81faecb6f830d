from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from k3ctl.loadtest import traces
from k3ctl.loadtest.workload import Sessions
from tests.loadtest.results import FIXTURES

SHAPE = Sessions(
    count=3, turns=6, system_tokens=400, user_tokens=60, tool_result_tokens=120, output_tokens=32, pause_s=2.0,
    subagent_turns=2,
)  # fmt: skip


@pytest.fixture
def found() -> list[traces.Session]:
    return traces.sessions(SHAPE, seed=7, tokens_per_word=1.0)


def test_the_same_seed_makes_the_same_sessions(found: list[traces.Session]) -> None:
    assert traces.sessions(SHAPE, seed=7, tokens_per_word=1.0) == found
    assert traces.sessions(SHAPE, seed=8, tokens_per_word=1.0) != found


def test_prompts_grow_turn_by_turn_and_carry_the_history(found: list[traces.Session]) -> None:
    for session in found:
        main = [turn for turn in session.turns if turn.agent == "main"]
        assert len(main) == 6
        for before, after in pairwise(main):
            assert after.messages[: len(before.messages)] == before.messages
            assert after.prompt_tokens == before.prompt_tokens + 32 + 120
        assert main[-1].prompt_tokens == traces.largest_prompt(SHAPE)


def test_a_subagent_runs_inside_its_parent_with_a_history_of_its_own(found: list[traces.Session]) -> None:
    agents = [turn.agent for turn in found[0].turns]
    assert agents == ["main"] * 3 + ["subagent"] * 2 + ["main"] * 3
    assert found[0].turns[3].messages[0] != found[0].turns[0].messages[0]


def test_sessions_share_the_system_prompt_and_nothing_else(found: list[traces.Session]) -> None:
    first = [session.turns[0].messages for session in found]
    assert len({messages[0]["content"] for messages in first}) == 1
    assert len({messages[1]["content"] for messages in first}) == 3


def test_pauses_stay_around_their_mean(found: list[traces.Session]) -> None:
    pauses = [turn.pause_s for session in found for turn in session.turns if turn.pause_s]
    assert all(1.0 <= pause <= 3.0 for pause in pauses)


def test_words_come_to_the_asked_number_of_tokens() -> None:
    assert len(traces.Writer(1, 4.0).text(400).split()) == 100


def test_lanes_keep_every_session_once(found: list[traces.Session]) -> None:
    for count in (1, 2, 3, 5):
        dealt = traces.lanes(found, count)
        assert len(dealt) == min(count, 3)
        assert sorted(session.id for lane in dealt for session in lane) == ["s0", "s1", "s2"]


def test_otel_spans_replay_the_pauses_in_order(found: list[traces.Session]) -> None:
    from datetime import datetime

    (line,) = traces.otel_lines(traces.lanes(found, 1))
    spans = json.loads(line)["spans"]
    turns = [turn for session in found for turn in session.turns]
    assert len(spans) == len(turns) == 24
    starts = [datetime.fromisoformat(span["start_time"]).timestamp() for span in spans]
    for (before, after), turn in zip(pairwise(starts), turns[1:], strict=True):
        assert after - before == pytest.approx(traces.RECORDED_S + turn.pause_s, abs=1e-3)


def test_spans_have_the_keys_of_the_recorded_trace(found: list[traces.Session]) -> None:
    ours = json.loads(traces.otel_lines(traces.lanes(found, 1))[0])
    recorded = json.loads((FIXTURES / "trace-otel-mini.jsonl").read_text().splitlines()[0])
    assert set(ours) == set(recorded)
    assert set(ours["spans"][0]) == set(recorded["spans"][0])
    assert set(ours["spans"][0]["attributes"]) <= set(recorded["spans"][0]["attributes"])


def test_weka_documents_have_the_keys_of_the_recorded_trace(found: list[traces.Session]) -> None:
    document = traces.weka_documents(found)[0]
    recorded = json.loads((FIXTURES / "trace-weka-mini.jsonl").read_text().splitlines()[0])
    assert set(document) == set(recorded)
    sub = next(r for r in document["requests"] if r["type"] == "subagent")
    assert [r["type"] for r in document["requests"]] == ["s", "s", "s", "subagent", "s", "s", "s"]
    assert len(sub["requests"]) == 2


def test_weka_blocks_are_prefixes_within_an_agent_and_disjoint_between_agents(
    found: list[traces.Session],
) -> None:
    documents = traces.weka_documents(found)
    seen: list[set[int]] = []
    for document in documents:
        main = [r for r in document["requests"] if r["type"] == "s"]
        sub = next(r for r in document["requests"] if r["type"] == "subagent")["requests"]
        for chain in (main, sub):
            for before, after in pairwise(chain):
                assert after["hash_ids"][: len(before["hash_ids"])] == before["hash_ids"]
            assert all(r["in"] == 64 * len(r["hash_ids"]) for r in chain)
            seen.append(set(chain[-1]["hash_ids"]))
    assert len(set().union(*seen)) == sum(map(len, seen))


def test_lengths_are_scaled_to_a_small_context_and_the_change_is_said() -> None:
    scaled, note = traces.fitted(SHAPE, 1024)
    assert traces.largest_prompt(scaled) + scaled.output_tokens <= 1024
    assert note is not None and "context of 1024" in note
    assert (scaled.turns, scaled.pause_s, scaled.count) == (6, 2.0, 3)


@pytest.mark.parametrize("room", [None, 1_000_000])
def test_lengths_that_fit_stay(room: Any) -> None:
    assert traces.fitted(SHAPE, room) == (SHAPE, None)
