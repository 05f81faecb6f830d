"""Agent sessions to replay: made from a shape and a seed, written as OpenTelemetry or WEKA traces.

A *lane* is one agent that works through its sessions one after the other, so the number of lanes is the
number of sessions in flight, at any server speed. Every request carries its whole history, as agents send
it. A subagent runs inside its parent's lane: the parent waits for it, as with a blocking agent tool. Tool
results are user messages, so that any chat template accepts them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from k3ctl.loadtest.workload import Sessions

Message = Mapping[str, str]

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
RECORDED_S = 0.5
"""Nominal length of a recorded request; only the pauses between requests are replayed."""
WEKA_BLOCK = 64
VOCABULARY = (
    "the file test run fix error build path value list return call data code line function class import "
    "module check find read write open close start stop first last next new old key name type size time log"
)
WORDS = tuple(VOCABULARY.split())


@dataclass(frozen=True)
class Turn:
    """One request: what is sent, how much is asked for, how long the agent pauses before it."""

    agent: str
    messages: tuple[Message, ...]
    prompt_tokens: int
    output_tokens: int
    pause_s: float


@dataclass(frozen=True)
class Session:
    """The requests of one agent session, in order; a subagent's requests stand where the parent waits."""

    id: str
    turns: tuple[Turn, ...]


class Writer:
    """Makes text of about a wanted number of tokens; the same seed makes the same text."""

    def __init__(self, seed: int, tokens_per_word: float) -> None:
        self._random = random.Random(seed)
        self._tokens_per_word = tokens_per_word

    def text(self, tokens: int) -> str:
        """Words that come to about ``tokens`` tokens."""
        count = max(1, round(tokens / self._tokens_per_word))
        return " ".join(self._random.choice(WORDS) for _ in range(count))

    def pause(self, mean_s: float) -> float:
        """A pause between half and one and a half times the mean, in seconds."""
        return round(mean_s * (0.5 + self._random.random()), 3)


def largest_prompt(shape: Sessions) -> int:
    """Tokens of the last request of a session."""
    return (
        shape.system_tokens
        + shape.user_tokens
        + (shape.turns - 1) * (shape.output_tokens + shape.tool_result_tokens)
    )


def fitted(shape: Sessions, max_model_len: int | None) -> tuple[Sessions, str | None]:
    """The shape scaled down to a server's context, and the sentence that says so; unchanged when it fits."""
    room = None if max_model_len is None else int(max_model_len * 0.8)
    needed = largest_prompt(shape) + shape.output_tokens
    if room is None or needed <= room:
        return shape, None
    factor = room / needed
    lengths = ("system_tokens", "user_tokens", "tool_result_tokens", "output_tokens")
    scaled = {name: max(4, int(getattr(shape, name) * factor)) for name in lengths}
    return replace(
        shape, **scaled
    ), f"session lengths × {factor:.3g} to fit the server's context of {max_model_len}"


def sessions(shape: Sessions, *, seed: int, tokens_per_word: float) -> list[Session]:
    """Generate ``shape.count`` sessions. All share the system prompt, as one agent product does."""
    writer = Writer(seed, tokens_per_word)
    system = writer.text(shape.system_tokens)
    return [_session(f"s{index}", shape, system, writer) for index in range(shape.count)]


def _session(name: str, shape: Sessions, system: str, writer: Writer) -> Session:
    history: list[Message] = [
        {"role": "system", "content": system},
        {"role": "user", "content": f"[{name}] {writer.text(shape.user_tokens)}"},
    ]
    size = shape.system_tokens + shape.user_tokens
    turns: list[Turn] = []
    for number in range(shape.turns):
        pause = writer.pause(shape.pause_s) if number else 0.0
        turns.append(Turn("main", tuple(history), size, shape.output_tokens, pause))
        if number == shape.turns // 2 - 1 and shape.subagent_turns:
            turns += _subagent(name, shape, writer)
        history += [
            {"role": "assistant", "content": writer.text(shape.output_tokens)},
            {"role": "user", "content": f"tool result: {writer.text(shape.tool_result_tokens)}"},
        ]
        size += shape.output_tokens + shape.tool_result_tokens
    return Session(name, tuple(turns))


def _subagent(name: str, shape: Sessions, writer: Writer) -> list[Turn]:
    """A subagent with a short system prompt and a history of its own."""
    system_tokens = max(4, shape.system_tokens // 4)
    history: list[Message] = [
        {"role": "system", "content": writer.text(system_tokens)},
        {"role": "user", "content": f"[{name} subagent] {writer.text(shape.user_tokens)}"},
    ]
    size, turns = system_tokens + shape.user_tokens, []
    for number in range(shape.subagent_turns):
        pause = writer.pause(shape.pause_s) if number else 0.0
        turns.append(Turn("subagent", tuple(history), size, shape.output_tokens, pause))
        history += [
            {"role": "assistant", "content": writer.text(shape.output_tokens)},
            {"role": "user", "content": f"tool result: {writer.text(shape.tool_result_tokens)}"},
        ]
        size += shape.output_tokens + shape.tool_result_tokens
    return turns


def lanes(found: Sequence[Session], count: int) -> list[list[Session]]:
    """Deal sessions out to ``count`` lanes, in turn; lanes that would stay empty are left out."""
    dealt = [list(found[index::count]) for index in range(count)]
    return [lane for lane in dealt if lane]


def otel_lines(dealt: Sequence[Sequence[Session]]) -> list[str]:
    """One JSON line per lane: a trace whose spans are the lane's requests (GenAI semantic conventions)."""
    return [json.dumps({"trace_id": f"lane{n}", "spans": _spans(n, lane)}) for n, lane in enumerate(dealt)]


def _spans(number: int, lane: Iterable[Session]) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = []
    at = 0.05 * number  # agents do not start in the same millisecond
    for session in lane:
        for turn in session.turns:
            at += turn.pause_s
            spans.append(
                {
                    "span_id": f"{session.id}-{len(spans)}",
                    "trace_id": f"lane{number}",
                    "start_time": (EPOCH + timedelta(seconds=at)).isoformat(),
                    "duration": RECORDED_S,
                    "status": {"code": 1},
                    "attributes": {
                        "gen_ai.operation.name": "chat",
                        "gen_ai.usage.input_tokens": turn.prompt_tokens,
                        "gen_ai.usage.output_tokens": turn.output_tokens,
                        "gen_ai.input.messages": json.dumps(turn.messages),
                    },
                }
            )
            at += RECORDED_S
    return spans


def weka_documents(found: Iterable[Session]) -> list[dict[str, Any]]:
    """Sessions as WEKA traces (64-token block hashes instead of text), which aiperf replays exactly."""
    return [_weka(session, index) for index, session in enumerate(found)]


def _weka(session: Session, index: int) -> dict[str, Any]:
    requests: list[dict[str, Any]] = []
    subagent: dict[str, Any] | None = None
    at = 0.0
    for turn in session.turns:
        at += turn.pause_s
        request = _weka_request(turn, at, index)
        if turn.agent == "main":
            subagent = None
            requests.append(request)
        else:
            if subagent is None:
                subagent = _weka_subagent(session.id, at)
                requests.append(subagent)
            subagent["requests"].append(request)
        at += RECORDED_S
    return {
        "id": session.id,
        "models": ["kimi-k3"],
        "block_size": WEKA_BLOCK,
        "hash_id_scope": "local",
        "tool_tokens": 0,
        "system_tokens": 0,
        "requests": requests,
    }


def _weka_request(turn: Turn, at: float, index: int) -> dict[str, Any]:
    blocks = -(-turn.prompt_tokens // WEKA_BLOCK)
    # blocks of the two agents of a session share nothing; the blocks of one agent are prefixes of each other
    first = (2 * index + (turn.agent != "main")) * 1_000_000
    return {
        "t": round(at, 3),
        "type": "s" if turn.agent == "main" else "n",
        "model": "kimi-k3",
        "in": blocks * WEKA_BLOCK,
        "out": turn.output_tokens,
        "hash_ids": list(range(first, first + blocks)),
        "input_types": ["tool_result" if turn.pause_s else "text"],
        "stop": "tool_use",
        "api_time": RECORDED_S,
        "think_time": turn.pause_s,
    }


def _weka_subagent(session_id: str, at: float) -> dict[str, Any]:
    return {
        "t": round(at, 3),
        "type": "subagent",
        "agent_id": f"{session_id}-subagent",
        "subagent_type": "Explore",
        "status": "completed",
        "models": ["kimi-k3"],
        "requests": [],
    }
