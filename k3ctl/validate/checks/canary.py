"""Seconds: what goes wrong quietly on a fast path, looked at from every side once (operator reports S06–S08, S18)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from k3ctl import signals
from k3ctl.canary import judge as shape
from k3ctl.canary import send
from k3ctl.canary.judge import Fault, Health, Reply
from k3ctl.canary.prompts import PROMPTS
from k3ctl.engine import client as series
from k3ctl.server.client import BadAnswer
from k3ctl.validate import divergence
from k3ctl.validate.checks import prompts
from k3ctl.validate.divergence import Step
from k3ctl.validate.record import Check, Judged, failed, not_run, passed, unknown
from k3ctl.validate.session import Session, said

AT_ONCE = 4
MANY_DRAFTS = 64
"""Drafts below which an acceptance of all or none of them says nothing."""
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "set_lamp",
        "description": "Switch a lamp.",
        "parameters": {
            "type": "object",
            "properties": {
                "lamp": {"type": "integer", "minimum": 0, "maximum": 9},
                "on": {"type": "boolean"},
            },
            "required": ["lamp", "on"],
            "additionalProperties": False,
        },
    },
}


def _replies(session: Session, count: int = len(PROMPTS)) -> list[Reply]:
    most = send.RANDOM_TOKENS if session.facts.random_weights else send.MAX_TOKENS
    bodies = [
        {"messages": prompts.user(p.text), "max_tokens": most, "temperature": 0, "logprobs": True}
        for p in PROMPTS[:count]
    ]
    return [send.reply(answer, 0.0) for answer in session.many(session.chat, bodies, AT_ONCE)]


def answers(session: Session) -> Judged:
    """Fixed questions with one right answer each."""
    if session.facts.random_weights:
        return not_run("this model has random weights: no answer of it is right or wrong")
    return judge_answers(
        [shape.judge(p, r, content=True) for p, r in zip(PROMPTS, _replies(session), strict=True)]
    )


def judge_answers(judged: Sequence[shape.Judged]) -> Judged:
    """Right answers, as ``k3ctl canary`` counts them. Answers that were cut off say nothing."""
    verdict, statement = shape.health(judged, content=True)
    cut = sum(found.right is None and not found.reply.error for found in judged)
    wrong = [{"prompt": j.prompt.id, "answer": j.reply.text[:120]} for j in judged if j.right is False]
    data = {"right": sum(j.right is True for j in judged), "of": len(judged), "cut_off": cut, "wrong": wrong}
    if verdict is Health.HEALTHY:
        return passed(statement, **data)
    if verdict is Health.UNKNOWN or (verdict is Health.SUSPECT and cut):
        return unknown(statement, **data)
    return failed(statement, **data)


def floods(session: Session) -> Judged:
    """Ten answers that are text."""
    return judge_shape(_replies(session), random_weights=session.facts.random_weights)


def judge_shape(replies: Sequence[Reply], *, random_weights: bool) -> Judged:
    """Floods, loops, tokens without text. Markers are another check's."""
    judged = [
        shape.judge(p, r, content=False, random_weights=random_weights)
        for p, r in zip(PROMPTS, replies, strict=False)
    ]
    found = [
        (j.prompt.id, f"{fault}: {said}")
        for j in judged
        for fault, said in j.faults
        if fault is not Fault.MARKER
    ]
    counts = {"answers": len(judged), "tokens": sum(r.completion_tokens for r in replies)}
    if found:
        return failed(
            f"`{found[0][0]}`: {found[0][1]}", faults=[f"{name}: {said}" for name, said in found], **counts
        )
    if not counts["tokens"]:
        return unknown("no answer held a token", **counts)
    return passed(f"{len(judged)} answers of {counts['tokens']} tokens: none floods or loops", **counts)


def think_markers(session: Session) -> Judged:
    """Reasoning and answer kept apart."""
    return judge_markers(_replies(session), parser=session.facts.reasoning_parser)


def judge_markers(replies: Sequence[Reply], *, parser: str | None) -> Judged:
    """No marker in an answer, and no finished answer whose reasoning never closed."""
    shown = [shape.judge(p, r, content=False) for p, r in zip(PROMPTS, replies, strict=False)]
    leaked = [said for j in shown for fault, said in j.faults if fault is Fault.MARKER]
    unclosed = [r for r in replies if r.reasoning and not r.text.strip() and r.finish_reason == "stop"]
    thought = [r for r in replies if r.reasoning]
    closed = [r for r in thought if r.text.strip()]
    counts = {"answers": len(replies), "with_reasoning": len(thought), "closed": len(closed)}
    if leaked:
        return failed(leaked[0], leaked=len(leaked), **counts)
    if unclosed:
        return failed(
            f"{len(unclosed)} answers ended inside their reasoning: its closing marker was lost", **counts
        )
    if not thought:
        why = "no reasoning parser is set" if parser is None else "no answer thought"
        return not_run(f"{why}: no marker leaked, and whether they balance was not seen", **counts)
    if not closed:
        return unknown("every answer was cut off while it was thinking", **counts)
    return passed(f"{len(closed)} of {len(thought)} thinking answers closed their reasoning", **counts)


def repeat_prefix(session: Session) -> Judged:
    """A repeated prompt, and prompts that share a beginning, warm and cold."""
    length = min(640, (session.facts.max_model_len or 640) * 5 // 8)
    shared = prompts.tokens(length, seed=61)
    tails = [prompts.tokens(8, seed=62), prompts.tokens(8, seed=63)]
    runs = [(tails[0], "a"), (tails[0], "a"), (tails[1], "a"), (tails[1], "b"), (tails[0], "a")]
    found = [
        divergence.steps(
            session.complete(prompts.salted(prompts.greedy([*shared, *tail], 12), f"k3ctl-{salt}"))
        )
        for tail, salt in runs
    ]
    return judge_prefix(found, divergence.tolerance(session.facts.platform))


def judge_prefix(runs: Sequence[Sequence[Step]], nats: float) -> Judged:
    """``runs``: A, A again, B (same beginning), B with a cold cache, A once more."""
    first, again, other, cold, late = runs
    pairs = {"repeated": (first, again), "shared prefix": (other, cold), "after another": (first, late)}
    compared = {name: divergence.compare(*pair) for name, pair in pairs.items()}
    told = {name: result.json() for name, result in compared.items()}
    if not all(runs):
        return unknown("an answer came without tokens", **told)
    same = divergence.compare(first, other)
    if same.at is None and same.max_delta == 0.0:
        return failed(
            "two prompts that end differently got the same answer: the second is a stale one", **told
        )
    bad = [f"{name}: {result.told}" for name, result in compared.items() if not result.agrees(nats)]
    if bad:
        return failed(bad[0], tolerance_nats=nats, **told)
    return passed(
        "repeated and prefix-sharing prompts answer as with a cold cache", tolerance_nats=nats, **told
    )


def tool_call(session: Session) -> Judged:
    """One forced tool call."""
    body = {
        "messages": prompts.user("Switch lamp 3 on."),
        "max_tokens": 256,
        "temperature": 0,
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "set_lamp"}},
    }
    try:
        answer = session.chat(body)
    except BadAnswer as error:
        if error.status == 400 and "tool" in error.message:
            return not_run(f"the server takes no tool calls: {said(error)}")
        raise
    return judge_tool(answer)


def judge_tool(answer: Mapping[str, Any]) -> Judged:
    """The call is there, is the one that was forced, and its arguments are of its schema."""
    calls = (answer["choices"][0].get("message") or {}).get("tool_calls") or []
    if not calls:
        return failed(
            "a forced tool call came back empty", finish_reason=answer["choices"][0].get("finish_reason")
        )
    called = calls[0].get("function") or {}
    text = str(called.get("arguments"))
    if called.get("name") != "set_lamp":
        return failed(f"another tool was called: `{called.get('name')}`")
    try:
        arguments = json.loads(text)
    except ValueError:
        return failed(f"the arguments are not JSON: `{text[:80]}`", calls=len(calls))
    good = isinstance(arguments, dict) and set(arguments) == {"lamp", "on"} and type(arguments["on"]) is bool
    if not good or type(arguments["lamp"]) is not int or not 0 <= arguments["lamp"] <= 9:
        return failed(f"the arguments are not of the tool's schema: `{text[:80]}`")
    return passed(f"the forced call came with arguments of its schema: `{text[:60]}`", calls=len(calls))


def json_schema(session: Session) -> Judged:
    """One answer of a JSON schema."""
    form = {
        "type": "json_schema",
        "json_schema": {"name": "answer", "strict": True, "schema": prompts.SCHEMA},
    }
    body = {
        "messages": prompts.user(prompts.QUESTION),
        "max_tokens": 256,
        "temperature": 1.0,
        "seed": 4,
        "response_format": form,
    }
    choice = session.chat(body)["choices"][0]
    return judge_json([str((choice.get("message") or {}).get("content") or "")])


def judge_json(texts: Sequence[str]) -> Judged:
    """Every text is JSON of ``prompts.SCHEMA``."""
    for text in texts:
        try:
            value = json.loads(text)
        except ValueError:
            return failed(f"not JSON: `{text[:80]}`", of=len(texts))
        if not _of_schema(value):
            return failed(f"not of the schema: `{text[:80]}`", of=len(texts))
    return passed(f"{len(texts)} of {len(texts)} answers are JSON of the schema", of=len(texts))


def _of_schema(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"ok", "color", "n"}
        and type(value["ok"]) is bool
        and value["color"] in ("red", "green")
        and type(value["n"]) is int
        and 0 <= value["n"] <= 99
    )


def acceptance(session: Session) -> Judged:
    """Drafts neither all accepted nor all refused."""
    if session.facts.draft_tokens == 0:
        return not_run("the server does not speculate")
    if session.facts.acceptance == "synthetic":
        return not_run("synthetic acceptance: drafts are accepted by a die, not verified")
    before = _series(session)
    session.many(
        session.complete, [prompts.greedy(prompts.tokens(24, seed=70 + n), 48) for n in range(6)], AT_ONCE
    )
    after = _settled_series(session, before)
    drafted, accepted = (
        after.get(name, 0.0) - before.get(name, 0.0)
        for name in (signals.DRAFT_TOKENS, signals.ACCEPTED_TOKENS)
    )
    return judge_acceptance(drafted, accepted)


def judge_acceptance(drafted: float, accepted: float) -> Judged:
    """From the server's counters over one interval."""
    counts = {"draft_tokens": drafted, "accepted_tokens": accepted}
    if drafted < MANY_DRAFTS:
        return unknown(f"only {drafted:.0f} drafts were counted", **counts)
    if accepted >= drafted:
        return failed(f"all of {drafted:.0f} drafts were accepted: nothing verifies them", **counts)
    if accepted <= 0:
        return failed(
            f"none of {drafted:.0f} drafts was accepted: the drafter and the model do not fit", **counts
        )
    return passed(f"{accepted:.0f} of {drafted:.0f} drafts were accepted", **counts)


def answered_here(session: Session) -> Judged:
    """The tokens that we received were generated by the server whose counters we read."""
    before = _series(session)
    bodies = [prompts.greedy(prompts.tokens(16, seed=80 + n), 16) for n in range(4)]
    answers = session.many(session.complete, bodies, AT_ONCE)
    names = {str(answer.get("model")) for answer in answers}
    ours = sum(int((answer.get("usage") or {}).get("completion_tokens") or 0) for answer in answers)
    after = _settled_series(session, before)
    served = after.get(signals.GENERATION_TOKENS, 0.0) - before.get(signals.GENERATION_TOKENS, 0.0)
    return judge_source(
        session.facts.model, names, ours, served if signals.GENERATION_TOKENS in after else None
    )


def judge_source(asked: str, named: set[str], ours: int, served: float | None) -> Judged:
    """``served``: what the server's own counter counted meanwhile; None without metrics."""
    counts = {"received": ours, "served": served}
    if named != {asked}:
        return failed(
            f"`{asked}` was asked, {', '.join(f'`{name}`' for name in sorted(named))} answered", **counts
        )
    if served is None:
        return unknown("`/metrics` cannot be read: who generated the tokens is not known", **counts)
    if served < ours:
        return failed(
            f"{ours} tokens were received, the server generated {served:.0f}: others answered", **counts
        )
    return passed(f"the server's counters hold the {ours} tokens that were received", **counts)


def _series(session: Session) -> dict[str, float]:
    return series.metrics(session.client.text("/metrics"))


def _settled_series(session: Session, before: Mapping[str, float]) -> dict[str, float]:
    """Counters once they have stopped moving: the server publishes them a moment later."""
    reading = _series(session)
    for _ in range(20):
        time.sleep(0.15)
        earlier, reading = reading, _series(session)
        moved = reading.get(signals.GENERATION_TOKENS) != before.get(signals.GENERATION_TOKENS)
        if moved and reading.get(signals.GENERATION_TOKENS) == earlier.get(signals.GENERATION_TOKENS):
            break
    return reading


CHECKS: tuple[Check, ...] = (
    Check("canary.answered-here", "the answers come from the server that is watched", answered_here, 3),
    Check("canary.answers", "fixed questions are answered rightly", answers, 6),
    Check("canary.floods", "no token flood, loop or empty answer", floods, 6),
    Check("canary.think-markers", "reasoning and answer are kept apart", think_markers, 6),
    Check(
        "canary.repeat-prefix", "repeated and prefix-sharing prompts answer as cold ones", repeat_prefix, 5
    ),
    Check("canary.tool-call", "a forced tool call comes with valid arguments", tool_call, 2),
    Check("canary.json-schema", "an answer of a JSON schema is valid", json_schema, 2),
    Check("canary.acceptance", "drafts are neither all accepted nor all refused", acceptance, 5),
)
