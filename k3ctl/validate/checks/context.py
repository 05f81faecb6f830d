"""Long contexts: nothing of them is lost, and what stands in them is found."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from k3ctl.server.client import BadAnswer
from k3ctl.validate import divergence
from k3ctl.validate.checks import prompts
from k3ctl.validate.divergence import Step
from k3ctl.validate.record import Check, Judged, failed, not_run, passed, unknown
from k3ctl.validate.session import Session, said

LENGTHS = (512, 4096, 32768, 131072, 262144, 524288)
"""Tokens of prompt and answer together; the longest that is served has a check of its own."""
ANSWER = 24
CHANGED = 16
"""Tokens at the start that differ between two prompts."""
SENSITIVE = 4096
"""Up to this length a changed start must show in the log probabilities; beyond, rounding may hide it."""
DEPTHS = (10, 50, 90)
NEEDLE_ANSWER = 2048
"""Most tokens of an answer, thinking included."""
WORDS = (
    "harbor", "copper", "lantern", "meadow", "granite", "willow", "anchor", "saffron", "ribbon", "cinder",
    "orchard", "velvet", "tunnel", "marble", "falcon", "juniper", "pebble", "canyon", "thistle", "ember",
)  # fmt: skip


def of_length(length: int | None) -> Callable[[Session], Judged]:
    """A check at ``length`` tokens; None: the longest that is served."""

    def run(session: Session) -> Judged:
        most = session.facts.max_model_len
        if most is None:
            return not_run("the server does not say how long a context may be")
        wanted = most if length is None else length
        if wanted > most:
            return not_run(f"the longest context that is served is {most} tokens")
        # at the end of the context drafts are cut short, which is no uniform step
        return whole(session, wanted - ANSWER - session.facts.query_len, wanted)

    return run


def whole(session: Session, sent: int, context: int) -> Judged:
    """Two prompts of ``sent`` tokens that differ at their start only."""
    tail = prompts.tokens(sent - CHANGED, seed=sent)
    starts = [prompts.tokens(CHANGED, seed=71), prompts.tokens(CHANGED, seed=72)]
    try:
        answers = [
            session.complete(prompts.salted(prompts.greedy([*start, *tail], ANSWER), f"k3ctl-context-{n}"))
            for n, start in enumerate(starts)
        ]
    except BadAnswer as error:
        if error.status == 400:
            return failed(f"a context of {context} tokens is refused: {said(error)}", context=context)
        raise
    read = [(answer.get("usage") or {}).get("prompt_tokens") for answer in answers]
    return judge_whole([divergence.steps(answer) for answer in answers], sent, read, context)


def judge_whole(runs: Sequence[Sequence[Step]], sent: int, read: Sequence[Any], context: int) -> Judged:
    """``read``: prompt tokens that the server says it read."""
    compared = divergence.compare(*runs)
    data = {"context": context, "sent": sent, "read": list(read), **compared.json()}
    short = next((count for count in read if count != sent), sent)
    if short != sent:
        return failed(f"{sent} prompt tokens were sent, the server read {short}", **data)
    if not all(runs):
        return unknown("an answer came without tokens", **data)
    flood = max((run.count(run[0]) for run in [[s.token for s in steps] for steps in runs]), default=0)
    if flood == len(runs[0]) > 8:
        return failed("one token over and over", **data)
    same = compared.at is None and compared.max_delta == 0.0
    if same and sent <= SENSITIVE:
        return failed(
            "a changed start changes no digit of the answer: the start of the context is lost", **data
        )
    if same:
        return unknown("a changed start changes no digit of the answer, which rounding may explain", **data)
    return passed(f"{sent} tokens were read, and their start shows in the answer", **data)


def needle(depth: int) -> Callable[[Session], Judged]:
    """A check with the needle at ``depth`` percent."""
    return lambda session: find(session, depth)


def find(session: Session, depth: int) -> Judged:
    """A sentence in a long text, asked for at its end; first in a short text, so that the model can do it at all."""
    if session.facts.random_weights:
        return not_run("random weights retrieve nothing, on a short context either")
    most = session.facts.max_model_len or 4096
    room = most - NEEDLE_ANSWER - 128
    if room < 512:
        return not_run(f"a context of {most} tokens leaves no room for a text")
    small = _retrieve(session, 20, 50, seed=depth)
    if not small[0]:
        return not_run(
            f"the model does not find a needle in 20 lines (`{small[1][:60]}`): nothing to compare with"
        )
    per_line = (small[2] or 400) / 24
    lines = max(21, int(min(room, 120_000) / per_line * 0.9))
    tries = [_retrieve(session, lines, depth, seed=depth * 10 + n) for n in range(3)]
    return judge_needle([found for found, *_ in tries], [text for _, text, _ in tries], tries[0][2], depth)


def judge_needle(found: Sequence[bool], texts: Sequence[str], tokens: int | None, depth: int) -> Judged:
    """All of them, at a length at which a model of K3's size misses none."""
    data = {"depth_percent": depth, "prompt_tokens": tokens, "found": sum(found), "of": len(found)}
    if all(found):
        return passed(f"{len(found)} of {len(found)} needles found at {depth} % of {tokens} tokens", **data)
    wrong = next(text for hit, text in zip(found, texts, strict=True) if not hit)
    return failed(
        f"{sum(found)} of {len(found)} needles found at {depth} % of {tokens} tokens: `{wrong[:60]}`", **data
    )


def _retrieve(session: Session, lines: int, depth: int, seed: int) -> tuple[bool, str, int | None]:
    rng = random.Random(seed)
    code = f"{rng.choice(WORDS)}-{rng.randrange(1000, 9999)}"
    text = [f"{n}. The {rng.choice(WORDS)} lies beside the {rng.choice(WORDS)}." for n in range(1, lines + 1)]
    text.insert(lines * depth // 100, f"The code of the vault is {code}.")
    question = "What is the code of the vault? Answer with the code only."
    body = {
        "messages": prompts.user("\n".join([*text, "", question])),
        "max_tokens": NEEDLE_ANSWER,
        "temperature": 0,
    }
    answer = session.chat(body)
    said_ = str((answer["choices"][0].get("message") or {}).get("content") or "")
    return code in said_, said_, (answer.get("usage") or {}).get("prompt_tokens")


CHECKS: tuple[Check, ...] = (
    *(
        Check(
            f"features.context.{length}",
            f"a context of {length} tokens is read whole",
            of_length(length),
            2 + length / 200 if length <= 512 else 0,
        )
        for length in LENGTHS
    ),
    Check("features.context.longest", "the longest context that is served is read whole", of_length(None), 8),
    *(
        Check(
            f"features.needle.{depth}", f"a sentence at {depth} % of a long text is found", needle(depth), 0
        )
        for depth in DEPTHS
    ),
)
