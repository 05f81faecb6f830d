"""What a request may ask for besides its tokens: a stop string, log probabilities, to be left alone on hanging up."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from k3ctl.server.client import BadAnswer
from k3ctl.validate import divergence
from k3ctl.validate.checks import equality, prompts
from k3ctl.validate.record import Check, Judged, failed, not_run, passed, unknown
from k3ctl.validate.session import COMPLETIONS, Session

ABORT_AFTER_S = 1.0
GONE_WITHIN_S = 20.0
"""How long a server may take to notice that a client hung up."""


def stop_string(session: Session) -> Judged:
    """An answer ends before a stop string, and says so."""
    body = {**prompts.greedy(prompts.tokens(12, seed=340), 48), "return_tokens_as_token_ids": False}
    text = str(session.complete(body)["choices"][0].get("text"))
    stop = stop_in(text)
    if not stop:
        return not_run("the answer holds no passage of letters to stop at")
    cut = session.complete({**body, "stop": [stop]})["choices"][0]
    kept = session.complete({**body, "stop": [stop], "include_stop_str_in_output": True})["choices"][0]
    return judge_stop(text, stop, cut, kept)


def stop_in(text: str) -> str:
    """A passage from the middle of the text that stands in it once."""
    places = (match for match in re.finditer(r"[A-Za-z]{3,6}", text) if match.start() > len(text) // 4)
    return next((match[0] for match in places if text.count(match[0]) == 1), "")


def judge_stop(text: str, stop: str, cut: Mapping[str, Any], kept: Mapping[str, Any]) -> Judged:
    """``text``: the answer without a stop; ``cut`` and ``kept``: with it, left out and left in."""
    before = text[: text.index(stop)]
    if cut.get("text") != before:
        return failed(
            f"the answer to be stopped at `{stop}` ends with `{str(cut.get('text'))[-40:]}`", stop=stop
        )
    if kept.get("text") != before + stop:
        return failed(f"the stop string `{stop}` is not kept where it should be", stop=stop)
    if (cut.get("finish_reason"), cut.get("stop_reason")) != ("stop", stop):
        return failed(
            f"the end is told as `{cut.get('finish_reason')}`, `{cut.get('stop_reason')}`, not as `{stop}`",
            stop=stop,
        )
    return passed(f"the answer ends before `{stop}`, or with it where it is to be kept", stop=stop)


def log_probabilities(session: Session) -> Judged:
    """What is told of a greedy answer is consistent in itself."""
    answer = session.complete(prompts.greedy(prompts.tokens(12, seed=345), 48, logprobs=20))
    told = answer["choices"][0].get("logprobs") or {}
    return judge_logprobs(told, (answer.get("usage") or {}).get("completion_tokens"))


def judge_logprobs(told: Mapping[str, Any], generated: int | None) -> Judged:
    """One entry a token; the chosen token is the likeliest; the told shares sum to at most 1."""
    tokens, values = told.get("tokens") or [], told.get("token_logprobs") or []
    tops = told.get("top_logprobs") or []
    data = {"tokens": len(tokens), "generated": generated}
    if not tokens or len({len(tokens), len(values), len(tops)}) > 1 or len(tokens) != generated:
        return failed(
            f"{len(tokens)} tokens, {len(values)} log probabilities, {len(tops)} lists, {generated} generated",
            **data,
        )
    for place, (token, value, top) in enumerate(zip(tokens, values, tops, strict=True)):
        if any(not math.isfinite(v) or v > 1e-6 for v in (value, *top.values())):
            return failed(f"token {place}: `{value}` is no log probability", **data)
        if top.get(token) != value or value < max(top.values()) - 1e-6:
            return failed(f"token {place}: the greedy token is not the likeliest that is told", **data)
        if (total := math.fsum(map(math.exp, top.values()))) > 1 + 1e-4:
            return failed(f"token {place}: the told shares sum to {total:.4f}", **data)
    return passed(f"{len(tokens)} tokens, each the likeliest of those told, shares of at most 1", **data)


def abort(session: Session) -> Judged:
    """Requests that are hung up on end, and change nothing for those beside them."""
    body = prompts.greedy(prompts.tokens(12, seed=346), 32)
    alone = divergence.steps(session.complete(body))
    most = (session.facts.max_model_len or 4096) - 64
    long = {**prompts.greedy(prompts.tokens(16, seed=347), most), "logprobs": None}

    def send(number: int) -> bool | Sequence[divergence.Step]:
        if number % 2:
            return divergence.steps(session.complete(body))
        return session.abandon(COMPLETIONS, long, ABORT_AFTER_S)

    answers = session.many(send, range(6), 6)
    cut = sum(answer is True for answer in answers)
    beside = [(alone, answer) for answer in answers if not isinstance(answer, bool)]
    judged = equality.judge(
        beside, divergence.tolerance(session.facts.platform), "beside hung-up requests as alone"
    )
    return judge_abort(judged, cut, _left_running(session))


def judge_abort(beside: Judged, cut: int, running: float | None) -> Judged:
    """``cut``: long requests that still ran when they were hung up on; ``running``: requests left a while later."""
    data = {**beside.evidence, "hung_up": cut, "left_running": running}
    if not cut:
        return unknown("every long request ended before it could be hung up on", **data)
    if running:
        return failed(
            f"{running:.0f} requests still run {GONE_WITHIN_S:.0f} s after their clients hung up", **data
        )
    if running is None and beside.outcome == "passed":
        return unknown("`/metrics` cannot be read: whether the requests ended is not known", **data)
    return Judged(beside.outcome, f"{cut} requests hung up on and gone; {beside.statement}", data)


def _left_running(session: Session) -> float | None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while True:
        try:
            load = session.client.load()
        except BadAnswer:
            return None
        if not load.running + load.waiting or time.monotonic() > deadline:
            return load.running + load.waiting
        time.sleep(0.3)


CHECKS: tuple[Check, ...] = (
    Check("features.stop-strings", "an answer ends at a stop string, and says so", stop_string, 5),
    Check("features.logprobs.told", "log probabilities are consistent in themselves", log_probabilities, 3),
    Check("features.abort", "hung-up requests end and disturb nobody", abort, 6),
)
