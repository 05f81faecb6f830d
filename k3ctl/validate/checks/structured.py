"""Answers that must have a form: JSON of a schema, a regular expression, a grammar, a choice, tool calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from k3ctl.server.client import BadAnswer
from k3ctl.validate.checks import canary, prompts
from k3ctl.validate.record import Check, Judged, failed, not_run, passed
from k3ctl.validate.session import Session, said

SEEDS = (1, 2, 3, 4)
AT_ONCE = 4
GRAMMAR = 'root ::= "set " name " to " number\nname ::= "red" | "green"\nnumber ::= [1-9] [0-9]'


@dataclass(frozen=True)
class Form:
    """A form that an answer must have. ``body``: how a request asks for it; ``pattern``: what every answer matches."""

    body: Mapping[str, Any]
    pattern: str
    told: str


FORMS: Mapping[str, Form] = {
    "regex": Form(
        {"structured_outputs": {"regex": r"[0-9]{4}-[0-1][0-9]"}}, r"[0-9]{4}-[0-1][0-9]", "the expression"
    ),
    "grammar": Form(
        {"structured_outputs": {"grammar": GRAMMAR}}, r"set (?:red|green) to [1-9][0-9]", "the grammar"
    ),
    "choice": Form(
        {"structured_outputs": {"choice": ["red", "green", "blue"]}}, r"red|green|blue", "the choices"
    ),
}


def formed(name: str) -> Callable[[Session], Judged]:
    """A check of one form, sampled at temperature 1 so that only the form holds the answer."""
    form = FORMS[name]

    def run(session: Session) -> Judged:
        return _sampled(session, form.body, lambda texts: judge_form(texts, form))

    return run


def judge_form(texts: Sequence[str], form: Form) -> Judged:
    """Every text matches as a whole."""
    bad = [text for text in texts if not re.fullmatch(form.pattern, text)]
    data = {"of": len(texts), "seeds": list(SEEDS), "distinct": len(set(texts))}
    if bad:
        return failed(f"{len(bad)} of {len(texts)} answers are not of {form.told}: `{bad[0][:60]}`", **data)
    return passed(f"{len(texts)} of {len(texts)} answers are of {form.told}", **data)


def json_schema(session: Session) -> Judged:
    """JSON of a schema, sampled."""
    form = {
        "type": "json_schema",
        "json_schema": {"name": "answer", "strict": True, "schema": prompts.SCHEMA},
    }
    return _sampled(session, {"response_format": form}, canary.judge_json)


def _sampled(session: Session, form: Mapping[str, Any], judge: Callable[[list[str]], Judged]) -> Judged:
    bodies = [
        {
            "messages": prompts.user(prompts.QUESTION),
            "max_tokens": 512,
            "temperature": 1.0,
            "seed": seed,
            **form,
        }
        for seed in SEEDS
    ]
    try:
        answers = session.many(session.chat, bodies, AT_ONCE)
    except BadAnswer as error:
        if error.status == 400:
            return not_run(f"the server refuses it: {said(error)}")
        raise
    return judge(
        [str((answer["choices"][0].get("message") or {}).get("content") or "") for answer in answers]
    )


def parallel_tools(session: Session) -> Judged:
    """Several calls of a tool in one answer, and several requests that call tools at once."""
    body = {
        "messages": prompts.user("Switch lamps 1, 2 and 3 on. Call the tool once for each lamp."),
        "max_tokens": 512,
        "temperature": 0,
        "tools": [canary.TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": True,
    }
    try:
        answers = session.many(session.chat, [body] * AT_ONCE, AT_ONCE)
    except BadAnswer as error:
        if error.status == 400 and "tool" in error.message:
            return not_run(f"the server takes no tool calls: {said(error)}")
        raise
    calls = [(answer["choices"][0].get("message") or {}).get("tool_calls") or [] for answer in answers]
    return judge_calls(calls, several=not session.facts.random_weights)


def judge_calls(answers: Sequence[Sequence[Mapping[str, Any]]], *, several: bool) -> Judged:
    """Every answer calls the tool with arguments of its schema; ``several``: more than one call is expected."""
    counts = [len(calls) for calls in answers]
    data = {"answers": len(answers), "calls": counts}
    if not all(counts):
        return failed(f"{counts.count(0)} of {len(counts)} answers that must call a tool call none", **data)
    for calls in answers:
        names = [str(call.get("id")) for call in calls]
        if len(set(names)) != len(names):
            return failed("two calls of one answer have the same id", **data)
        for call in calls:
            judged = canary.judge_tool({"choices": [{"message": {"tool_calls": [call]}}]})
            if judged.outcome != "passed":
                return failed(judged.statement, **data)
    if several and max(counts) < 2:
        return failed("three lamps were asked for, no answer holds more than one call", **data)
    return passed(f"{len(answers)} answers with {sum(counts)} calls, every one of its schema", **data)


CHECKS: tuple[Check, ...] = (
    Check("features.structured.json-schema", "sampled answers are JSON of a schema", json_schema, 6),
    Check("features.structured.regex", "sampled answers match a regular expression", formed("regex"), 3),
    Check("features.structured.grammar", "sampled answers are of a grammar", formed("grammar"), 3),
    Check("features.structured.choice", "sampled answers are one of the choices", formed("choice"), 3),
    Check(
        "features.tools.parallel", "several tool calls come at once, each of its schema", parallel_tools, 4
    ),
)
