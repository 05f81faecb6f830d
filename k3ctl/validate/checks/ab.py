"""A/B: a second server, or the same one as it was before a change, on the same prompts; and one prompt in many batches.

Every check keeps its answers as evidence, so that a validation can be the other side of a later one (``against``): a
machine that holds one engine at a time is asked, restarted with another path, and asked again.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from k3ctl.errors import K3Error, UsageError
from k3ctl.validate import divergence, interval, sides, state
from k3ctl.validate.checks import equality
from k3ctl.validate.divergence import Step
from k3ctl.validate.interval import Interval, Standing
from k3ctl.validate.record import Check, Judged, not_run, unknown
from k3ctl.validate.session import Session
from k3ctl.validate.settle import settle

TOP = 5
"""Most likely tokens that are asked for: a margin that lies beyond them is no near tie."""
SEED = 20260927
AT_ONCE = 4
TOKENS_PROMPTS, TOKENS_LENGTH = 24, 32
LOGPROB_PROMPTS, LOGPROB_LENGTH = 64, 8
"""Many short answers: few have parted before their end, so most tokens can be compared."""
LONG_PROMPTS, LONG_LENGTH, LONG_LENGTH_RANDOM = 2, 2048, 384
PROBES = 2
"""Prompts that are asked alone and in a batch."""
BATCH_LENGTH = 48
BATCHES = (2, 8, 64)

Body = dict[str, Any]


def tokens(session: Session) -> Judged:
    """Greedy answers token by token."""
    return _both(session, "ab.tokens", _bodies(TOKENS_PROMPTS, 24, TOKENS_LENGTH, SEED), _judge_tokens)


def logprobs(session: Session) -> Judged:
    """Log probabilities of many short answers."""
    return _both(
        session, "ab.logprobs", _bodies(LOGPROB_PROMPTS, 12, LOGPROB_LENGTH, SEED + 1), _judge_logprobs
    )


def long(session: Session) -> Judged:
    """Answers up to the length that the option ``long_tokens`` gives, or that the context holds."""
    usual = LONG_LENGTH_RANDOM if session.facts.random_weights else LONG_LENGTH
    wanted = int(_number(session, "long_tokens", usual))
    room = (session.facts.max_model_len or wanted * 2) // 2
    bodies = _bodies(LONG_PROMPTS, 24, max(1, min(wanted, room)), SEED + 2)
    return _both(session, "ab.long", bodies, sides.judge_long)


def batch(size: int, session: Session) -> Judged:
    """The same prompts alone, and among others in a batch of ``size``. Needs no second server."""
    if reason := equality.too_large(session, size):
        return not_run(reason)
    bodies = _bodies(size, 24, BATCH_LENGTH, SEED + 3)
    alone = [_one(session, body) for body in _salted(bodies[:PROBES])]
    tries, rows = equality.gathered(
        session, lambda: session.many(partial(_one, session), _salted(bodies), size), size
    )
    together = [answer for answers in tries for answer in answers[:PROBES]]
    found = sides.agreement(alone * len(tries), together, _nats(session))
    judged = sides.judge_tokens(found, batch=size)
    if judged.outcome == "passed":
        judged = sides.judge_logprobs(found, batch=size)
    return equality.judge_forced(judged, size, rows)


def _judge_tokens(mine: sides.Answers, theirs: sides.Answers, nats: float, **evidence: Any) -> Judged:
    return sides.judge_tokens(sides.agreement(mine, theirs, nats), **evidence)


def _judge_logprobs(mine: sides.Answers, theirs: sides.Answers, nats: float, **evidence: Any) -> Judged:
    return sides.judge_logprobs(sides.agreement(mine, theirs, nats), **evidence)


def _both(session: Session, name: str, bodies: Sequence[Body], judge: Callable[..., Judged]) -> Judged:
    """Ask this side, find the other's answers, judge."""
    asked = _digest(bodies)
    if session.other is not None and session.other.url == session.url:
        return not_run("both sides are one server: it would agree with itself")
    mine = session.many(partial(_one, session), bodies, AT_ONCE)
    evidence = {"asked": asked, "answers": sides.kept(mine)}
    nats = _nats(session)
    if session.other is not None:
        theirs, seen = _other_side(session.other, bodies)
        told = {"other": session.other.facts.told, "other_interval": seen.json()}
        judged = judge(mine, theirs, max(nats, _nats(session.other)), **told, **evidence)
        return _on_other_path(name, judged, seen)
    if not (against := session.options.get("against")):
        hint = "these answers are kept for `--against` of a later run; or name a second server with `--other`"
        return unknown(f"there is no other side; {hint}", **evidence)
    earlier = kept_side(Path(str(against)), name, asked)
    if isinstance(earlier, str):
        return unknown(earlier, **evidence)
    return judge(mine, earlier, nats, other=str(against), **evidence)


def _other_side(other: Session, bodies: Sequence[Body]) -> tuple[sides.Answers, Interval]:
    """The second server's answers, and what its own witness counted meanwhile."""
    before, started = other.begin(), time.monotonic()
    theirs = other.many(partial(_one, other), bodies, AT_ONCE)
    return theirs, interval.read(other.end(before, time.monotonic() - started))


def _on_other_path(name: str, judged: Judged, seen: Interval) -> Judged:
    """A pass needs the other side's steps on the path that it claims, too."""
    settled = settle(Check(name, "", tokens), judged, seen)
    return (
        settled if settled is judged else replace(settled, statement=f"the other side: {settled.statement}")
    )


def kept_side(directory: Path, name: str, asked: str) -> list[tuple[Step, ...]] | str:
    """The answers that an earlier validation kept for a check, or why they are no side to compare with."""
    try:
        _, results = state.load(directory)
    except K3Error as error:
        return f"`{directory}` is no other side: {error.message}"
    found = next((result for result in reversed(results) if result.check == name), None)
    if found is None:
        return f"`{directory}` has no `{name}`"
    if found.evidence.get("asked") != asked:
        return f"`{directory}` was asked other prompts, or answers of another length"
    standing = (found.interval or {}).get("standing")
    if standing != Standing.ON_PATH:
        reason = (found.interval or {}).get("reason") or "nothing was seen of its steps"
        return f"the steps of `{directory}` do not count: {reason}"
    try:
        return sides.read(found.evidence.get("answers"))
    except ValueError as error:
        return f"`{directory}` is damaged: {error}"


def _bodies(count: int, words: int, length: int, seed: int) -> list[Body]:
    # ids: pieces of a character that are no text of their own would all look alike
    common = {"max_tokens": length, "temperature": 0, "logprobs": TOP, "ignore_eos": True}
    by_id = {"return_tokens_as_token_ids": True}
    return [{"prompt": text, **common, **by_id} for text in sides.prompts(count, words, seed)]


def _salted(bodies: Sequence[Body]) -> list[Body]:
    """With a prefix cache key of their own: a hit would skip the very steps that are compared."""
    salt = uuid.uuid4().hex
    return [{**body, "cache_salt": salt} for body in bodies]


def _one(session: Session, body: Mapping[str, Any]) -> tuple[Step, ...]:
    return divergence.steps(session.complete(body))


def _nats(session: Session) -> float:
    """The tolerance of the platform, or the option ``nats``."""
    return _number(session, "nats", divergence.tolerance(session.facts.platform))


def _number(session: Session, name: str, usual: float) -> float:
    """A positive number among the options. Raises UsageError."""
    given = session.options.get(name, usual)
    try:
        value = float(given)
    except (TypeError, ValueError):
        value = math.nan
    if not 0 < value < math.inf:
        raise UsageError(f"the option `{name}` is `{given}`", hint="a number above 0 is meant")
    return value


def _digest(bodies: Sequence[Body]) -> str:
    return hashlib.sha256(json.dumps(bodies, sort_keys=True).encode()).hexdigest()[:16]


CHECKS: tuple[Check, ...] = (
    Check("ab.tokens", "greedy answers of two sides are equal, but for near ties", tokens, 25.0),
    Check("ab.logprobs", "log probabilities of two sides lie close together", logprobs, 15.0),
    Check("ab.long", "long answers of two sides are equal and do not drift", long, 30.0),
    *(
        Check(
            f"ab.batch.{size}",
            f"a prompt is answered alone as in a batch of {size}",
            partial(batch, size),
            6.0 + size / 4,
        )
        for size in BATCHES
    ),
)
