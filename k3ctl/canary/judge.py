"""What an answer's shape says: floods, loops, lost think markers, nothing at all. Pure.

A fast path that goes wrong seldom stops the server: it floods one token, repeats, or loses the marker that closes the
thinking (operator reports S06–S08, S18). The shape is judged on any model, the content only where a right answer can be
expected.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from k3ctl.canary.prompts import Prompt

FLOOD_RUN = 16
"""The same token this many times in a row is no text; long runs of spaces or dashes are tokens of their own."""
FLOOD_SHARE = 0.6
MIN_TOKENS = 32
LOOP_PERIOD = 64
LOOP_TIMES = 4
RIGHT_OF_TEN = 8

# Kimi K3's markers are three tokens, <|open|> think <|sep|>; other models' stand here because one parser may meet them
_MARKER = re.compile(
    r"<\|(?:open|close|sep)\|>|<\|?/?(?:think|thinking|reasoning)\|?>|[◁◂]/?think[▷▸]|<\|(?:begin|end)_of_thought\|>"
)
_WORD = re.compile(r"\w+|[^\w\s]")


class Fault(enum.StrEnum):
    """What is wrong with one answer."""

    NO_ANSWER = "no answer"
    EMPTY = "tokens without text"
    FLOOD = "one token over and over"
    LOOP = "the same passage over and over"
    MARKER = "a think marker in the answer"
    UNDECODABLE = "characters that are no text"
    WRONG = "not the right answer"


@dataclass(frozen=True)
class Reply:
    """One answer. ``tokens``: the answer's tokens as text, empty when the server does not tell; ``error``: instead."""

    text: str = ""
    reasoning: str = ""
    tokens: tuple[str, ...] = ()
    completion_tokens: int = 0
    finish_reason: str = ""
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Judged:
    """One prompt, its answer and what is wrong with it."""

    prompt: Prompt
    reply: Reply
    faults: tuple[tuple[Fault, str], ...]
    right: bool | None
    """None where the content was not judged."""


class Health(enum.StrEnum):
    """The verdict over all prompts."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    CORRUPT = "corrupt"
    UNKNOWN = "unknown"


def judge(prompt: Prompt, reply: Reply, *, content: bool, random_weights: bool = False) -> Judged:
    """Shape always; the content when ``content`` and the answer was not cut.

    Random weights over a tokenizer of bytes give bytes that are no characters: that alone is no fault of theirs.
    """
    if reply.error:
        return Judged(prompt, reply, ((Fault.NO_ANSWER, reply.error),), None)
    faults = [found for found in _shape(reply) if not (random_weights and found[0] is Fault.UNDECODABLE)]
    cut = reply.finish_reason == "length"
    right = bool(re.search(prompt.answer, reply.text)) if content and not cut else None
    if right is False:
        faults.append((Fault.WRONG, f"`{reply.text.strip()[:60]}` instead of `{prompt.told}`"))
    return Judged(prompt, reply, tuple(faults), right)


def health(results: Sequence[Judged], *, content: bool) -> tuple[Health, str]:
    """The verdict and its sentence. Nothing answered, or nothing was judged: unknown, never healthy."""
    broken = [r for r in results if any(fault not in {Fault.WRONG, Fault.NO_ANSWER} for fault, _ in r.faults)]
    silent = [r for r in results if r.reply.error]
    judged = [r for r in results if r.right is not None]
    right = sum(r.right is True for r in judged)
    if broken:
        kinds = Counter(str(fault) for r in broken for fault, _ in r.faults if fault is not Fault.WRONG)
        said = ", ".join(f"{kind} ({n})" for kind, n in kinds.most_common())
        return Health.CORRUPT, f"{len(broken)} of {len(results)} answers are no text: {said}"
    if not results:
        return Health.UNKNOWN, "nothing was asked"
    if silent:
        verdict = Health.UNKNOWN if len(silent) == len(results) else Health.SUSPECT
        return verdict, f"{len(silent)} of {len(results)} prompts were not answered: {silent[0].reply.error}"
    if not content:
        return Health.UNKNOWN, "no flood, loop or lost marker; the answers were not judged"
    if len(judged) < len(results):
        return (
            Health.SUSPECT,
            f"{len(results) - len(judged)} of {len(results)} answers were cut off before their end",
        )
    if right < len(results) * RIGHT_OF_TEN / 10:
        return Health.SUSPECT, f"only {right} of {len(results)} answers are right"
    return (
        Health.HEALTHY,
        f"{right} of {len(results)} answers are right, none floods, loops or loses a marker",
    )


def _shape(reply: Reply) -> list[tuple[Fault, str]]:
    said = reply.reasoning + reply.text
    units: Sequence[str] = reply.tokens or _WORD.findall(said)
    faults: list[tuple[Fault, str]] = []
    if not said.strip():
        how_many = max(reply.completion_tokens, len(reply.tokens))
        return [(Fault.EMPTY, f"{how_many} tokens, no text")] if not _flood(units) else [_flooded(units)]
    letters = [letter for letter in said if not letter.isspace()]  # indentation is no flood
    if _flood(units) or _mostly_one(letters):
        faults.append(_flooded(units if _flood(units) else letters))
    elif period := loop(units):
        passage = "".join(units[-period:]) if reply.tokens else " ".join(units[-period:])
        faults.append((Fault.LOOP, f"`{passage.strip()[:40]}` at the end, at least {LOOP_TIMES} times"))
    if found := _MARKER.search(reply.text):
        faults.append((Fault.MARKER, f"`{found[0]}` is in the answer: the reasoning parser did not see it"))
    if (bad := said.count("\ufffd")) > 0.05 * len(said):
        faults.append((Fault.UNDECODABLE, f"{bad} of {len(said)} characters"))
    return faults


def longest_run(units: Sequence[str]) -> tuple[int, str]:
    """Length of the longest run of one unit, and the unit."""
    best, unit, run, before = 0, "", 0, None
    for current in units:
        run = run + 1 if current == before else 1
        before = current
        if run > best:
            best, unit = run, current
    return best, unit


def loop(units: Sequence[str]) -> int:
    """Period with which the end repeats itself, at least ``LOOP_TIMES`` times and over ``MIN_TOKENS`` units; else 0."""
    for period in range(2, LOOP_PERIOD + 1):
        span = period * LOOP_TIMES
        if span < MIN_TOKENS:
            span = -(-MIN_TOKENS // period) * period
        if len(units) < span:
            continue
        tail = units[-span:]
        if all(tail[i] == tail[i - period] for i in range(period, span)):
            return period
    return 0


def _flood(units: Sequence[str]) -> bool:
    if not units:
        return False
    run, _ = longest_run(units)
    return run >= FLOOD_RUN or _mostly_one(units)


def _mostly_one(units: Sequence[str]) -> bool:
    return len(units) >= MIN_TOKENS and Counter(units).most_common(1)[0][1] >= FLOOD_SHARE * len(units)


def _flooded(units: Sequence[str]) -> tuple[Fault, str]:
    (unit, count), *_ = Counter(units).most_common(1)
    hint = " (token 0: NaN logits look like this)" if unit.strip() == "!" else ""
    return Fault.FLOOD, f"`{unit}` is {count} of {len(units)}{hint}"
