"""What must not change an answer: the batch, a warm prefix cache, streaming, drafts, the way a token was scored.

Greedy answers with their log probabilities, compared token by token. A difference at a near tie is none (see
``divergence``); the tolerance is the platform's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from k3ctl import signals
from k3ctl.engine import client as series
from k3ctl.validate import divergence
from k3ctl.validate.checks import prompts
from k3ctl.validate.divergence import Comparison, Step
from k3ctl.validate.record import Check, Judged, failed, not_run, passed, unknown
from k3ctl.validate.session import CHAT, COMPLETIONS, Answer, Session

T = TypeVar("T")
BATCHES = (1, 2, 8, 64)
DIFFERENT = 4
"""Prompts of a batch that differ; larger batches repeat them."""
TOKENS = 32
TRIES = 3
"""Of a batch whose requests did not meet, as on a busy client; every answer counts."""
FORCED_SHARE = 0.75
"""Of the batch, in the mean over its decode steps: the first and last steps hold fewer."""


def judge(pairs: Sequence[tuple[Sequence[Step], Sequence[Step]]], nats: float, same: str) -> Judged:
    """Every pair agrees. ``same``: what a pass says, in words."""
    if not pairs or not all(one and other for one, other in pairs):
        return unknown("an answer came without tokens and their log probabilities")
    compared = [divergence.compare(one, other) for one, other in pairs]
    worst = max(compared, key=_badness)
    data = {
        "answers": len(compared),
        "tokens": sum(result.length for result in compared),
        "near_ties": sum(result.near_tie(nats) for result in compared),
        "tolerance_nats": nats,
        "worst": worst.json(),
    }
    bad = [result for result in compared if not result.agrees(nats)]
    if bad:
        return failed(f"{len(bad)} of {len(compared)} answers: {max(bad, key=_badness).told}", **data)
    ties = f", {data['near_ties']} parted at a near tie" if data["near_ties"] else ""
    return passed(
        f"{same}: {len(compared)} answer{'s' if len(compared) > 1 else ''} of {data['tokens']} tokens, "
        f"log probabilities within {worst.max_delta:.2g} nats{ties}",
        **data,
    )


def _badness(result: Comparison) -> tuple[float, float]:
    return (result.margin or 0.0) if result.at is not None else -1.0, result.max_delta


def in_batch(batch: int) -> Callable[[Session], Judged]:
    """A check of ``batch`` requests at once against each of them alone."""
    return lambda session: of_batch(session, batch)


def of_batch(session: Session, batch: int) -> Judged:
    """``batch`` requests at once give what each gives alone."""
    reason = too_large(session, batch)
    if reason:
        return not_run(reason)
    return at_once(session, batch, 12)


def at_once(session: Session, batch: int, length: int) -> Judged:
    """``batch`` requests whose prompts have ``length`` tokens, at once and each alone."""
    bodies = [
        prompts.greedy(prompts.tokens(length, seed=300 + n), TOKENS) for n in range(min(batch, DIFFERENT))
    ]
    alone = [divergence.steps(session.complete(body)) for body in bodies]
    sent = [bodies[n % len(bodies)] for n in range(batch)]
    tries, rows = gathered(session, lambda: session.many(session.complete, sent, batch), batch)
    pairs = [
        (alone[n % len(alone)], divergence.steps(answer))
        for answers in tries
        for n, answer in enumerate(answers)
    ]
    judged = judge(pairs, divergence.tolerance(session.facts.platform), f"{batch} at once as alone")
    return judge_forced(judged, batch, rows)


def gathered(session: Session, ask: Callable[[], list[T]], batch: int) -> tuple[list[list[T]], float | None]:
    """Answers of every try to send a batch that forms, the last of them the one that did if any; its rows a step."""
    tries: list[list[T]] = []
    while True:
        answers, rows = session.rows_during(ask)
        tries.append(answers)
        if rows is None or rows >= FORCED_SHARE * batch or len(tries) == TRIES:
            return tries, rows


def judge_forced(judged: Judged, batch: int, rows: float | None) -> Judged:
    """A batch that did not form shows nothing. ``rows``: requests of a decode step, in the mean; None: not seen."""
    evidence = {**judged.evidence, "requests_per_decode_step": None if rows is None else round(rows, 2)}
    if judged.outcome == "passed" and rows is not None and rows < FORCED_SHARE * batch:
        return unknown(f"{rows:.1f} requests ran at a time in the mean, not {batch}", **evidence)
    return Judged(judged.outcome, judged.statement, evidence)


def too_large(session: Session, batch: int) -> str:
    """Why a batch cannot be forced on the claimed path; empty when it can."""
    facts = session.facts
    most = facts.most_at_once(facts.claimed)
    if most is None or batch <= most:
        return ""
    if facts.max_num_seqs is not None and batch > facts.max_num_seqs:
        return f"the server runs at most {facts.max_num_seqs} requests at once (max_num_seqs)"
    return (
        f"{batch} requests of {facts.query_len} tokens a step are more than the {facts.max_rows} token rows of the "
        f"{facts.claimed} path: standard by design"
    )


def graph_batches(session: Session) -> Judged:
    """The batches at which the captured graphs begin to hold other kernels, as the witness lists them."""
    wanted = [batch for batch in session.facts.graph_batches if not too_large(session, batch)]
    if not session.facts.graph_batches:
        return not_run("the witness lists no graph whose kernels differ from those of the graph below it")
    judged = {batch: of_batch(session, batch) for batch in wanted}
    bad = {batch: one for batch, one in judged.items() if one.outcome != "passed"}
    evidence = {str(batch): dict(one.evidence) for batch, one in judged.items()}
    if bad:
        batch, worst = next(iter(bad.items()))
        return Judged(worst.outcome, f"batch {batch}: {worst.statement}", evidence)
    return passed(f"batches {', '.join(map(str, wanted))}: at once as alone", **evidence)


def prefix_cache(session: Session) -> Judged:
    """Answers whose prompts are read from the prefix cache equal cold ones, at several lengths."""
    if session.facts.prefix_caching is False:
        return not_run("the server has no prefix cache")
    most = (session.facts.max_model_len or 1024) - TOKENS - 8
    lengths = [length for length in (most // 2, most * 3 // 4, most) if length > 16]
    pairs, hits = [], 0.0
    for number, length in enumerate(lengths):
        shared = prompts.tokens(min(length, 16384), seed=200 + number)
        body = prompts.greedy([*shared, 17, 18, 19], TOKENS)
        cold = divergence.steps(session.complete(prompts.salted(body, f"k3ctl-cold-{number}")))
        for tail in ([20, 21], [22, 23]):  # what a third request shares is cached
            session.complete(prompts.salted(prompts.greedy([*shared, *tail], 2), f"k3ctl-warm-{number}"))
        before = _hits(session)
        for _ in range(2):
            pairs.append(
                (cold, divergence.steps(session.complete(prompts.salted(body, f"k3ctl-warm-{number}"))))
            )
        hits += _hits(session) - before
    judged = judge(pairs, divergence.tolerance(session.facts.platform), "warm as cold")
    return judge_hits(judged, hits)


def judge_hits(judged: Judged, hits: float) -> Judged:
    """Equality of answers that never hit the cache shows nothing about it."""
    evidence = {**judged.evidence, "hit_tokens": hits}
    if judged.outcome == "passed" and hits <= 0:
        return unknown("the prefix cache was not hit: nothing was compared with it", **evidence)
    text = (
        f"{judged.statement}; {hits:.0f} prompt tokens came from the cache" if hits > 0 else judged.statement
    )
    return Judged(judged.outcome, text, evidence)


def _hits(session: Session) -> float:
    return series.metrics(session.client.text("/metrics")).get(signals.PREFIX_HITS, 0.0)


def streamed_completion(session: Session) -> Judged:
    """A streamed completion is the one that comes whole."""
    body = prompts.greedy(prompts.tokens(12, seed=320), TOKENS)
    whole = divergence.steps(session.complete(body))
    events = session.stream(COMPLETIONS, body)
    parts = tuple(step for event in events if event.get("choices") for step in divergence.steps(event))
    judged = judge([(whole, parts)], divergence.tolerance(session.facts.platform), "streamed as whole")
    return _in_parts(judged, events)


def streamed_chat(session: Session) -> Judged:
    """A streamed chat answer is the one that comes whole: text, reasoning and ending."""
    body = {"messages": prompts.user("Name three metals."), "max_tokens": 48, "temperature": 0}
    return judge_stream(session.chat(body), session.stream(CHAT, body))


def judge_stream(whole: Answer, events: Sequence[Answer]) -> Judged:
    """Deltas put together against the message."""
    choice = whole["choices"][0]
    message = choice.get("message") or {}
    deltas = [event["choices"][0] for event in events if event.get("choices")]
    for names in (("content",), ("reasoning", "reasoning_content")):
        expected = next((str(message[name]) for name in names if message.get(name)), "")
        got = "".join(str((d.get("delta") or {}).get(name) or "") for d in deltas for name in names)
        if got != expected:
            return failed(f"the streamed {names[0]} is `{got[:60]}`, whole it is `{expected[:60]}`")
    ends = [d.get("finish_reason") for d in deltas if d.get("finish_reason")]
    if ends != [choice.get("finish_reason")]:
        return failed(f"the stream ends with {ends}, whole it ends with `{choice.get('finish_reason')}`")
    usages = (whole.get("usage"), next((e["usage"] for e in reversed(events) if e.get("usage")), None))
    counts = [(usage or {}).get("completion_tokens") for usage in usages]
    if counts[0] != counts[1]:
        return failed(f"{counts[1]} tokens streamed, {counts[0]} whole")
    return _in_parts(passed(f"streamed as whole: {counts[0]} tokens", tokens=counts[0]), events)


def _in_parts(judged: Judged, events: Sequence[Answer]) -> Judged:
    """One event with everything is no stream."""
    parts = sum(bool(event.get("choices")) for event in events)
    if judged.outcome == "passed" and parts < 2:
        return failed("the answer came in one piece: it was not streamed", events=parts)
    return Judged(judged.outcome, judged.statement, {**judged.evidence, "events": parts})


def rescored(session: Session) -> Judged:
    """Tokens that decode steps gave have the same log probability when they are read as a prompt.

    The one check within a server that stands decode kernels against prefill's.
    """
    pairs = [_rescored(session, prompts.tokens(24, seed=330 + n)) for n in range(4)]
    return judge(pairs, divergence.tolerance(session.facts.platform), "decoded as read again")


def _rescored(session: Session, prompt: list[int]) -> tuple[Sequence[Step], Sequence[Step]]:
    steps = divergence.steps(session.complete(prompts.greedy(prompt, TOKENS)))
    ids = [int(step.token.rpartition(":")[2]) for step in steps]
    answer = session.complete(
        {"prompt": [*prompt, *ids], "max_tokens": 1, "temperature": 0, "prompt_logprobs": 5}
    )
    told = (answer["choices"][0].get("prompt_logprobs") or [])[len(prompt) :]
    return steps, tuple(read_again(step, entry) for step, entry in zip(steps, told, strict=False))


def read_again(step: Step, entry: Mapping[str, Any]) -> Step:
    """The token that a prompt's position is likeliest to have, with the told alternatives; ours where it is the same.

    vLLM tells the prompt's own token beside the likeliest ones; a greedy token must be the first of them.
    """
    top = {f"token_id:{name}": float(value["logprob"]) for name, value in (entry or {}).items()}
    first = max(top, key=lambda name: (top[name], name == step.token), default="")
    return Step(first, top.get(first, float("-inf")), top)


def speculation(session: Session) -> Judged:
    """Greedy answers under speculation are the model's own first choices: read again, no draft is left.

    Sampled ones under speculation are what the ``features.sampling`` checks draw on such a server.
    """
    if session.facts.draft_tokens == 0:
        return not_run("the server does not speculate")
    if session.facts.acceptance == "synthetic":
        return not_run("synthetic acceptance: drafts are accepted by a die, so answers differ by design")
    before = series.metrics(session.client.text("/metrics"))
    pairs = [_rescored(session, prompts.tokens(16, seed=350 + n)) for n in range(6)]
    after = series.metrics(session.client.text("/metrics"))
    accepted = after.get(signals.ACCEPTED_TOKENS, 0.0) - before.get(signals.ACCEPTED_TOKENS, 0.0)
    judged = judge(pairs, divergence.tolerance(session.facts.platform), "speculated as read again")
    if judged.outcome == "passed" and accepted <= 0:
        return unknown("no draft was accepted: nothing of speculation was compared", **judged.evidence)
    return Judged(judged.outcome, f"{judged.statement}; {accepted:.0f} drafts were accepted", judged.evidence)


CHECKS: tuple[Check, ...] = (
    *(
        Check(
            f"features.batch.{batch}",
            f"{batch} requests at once answer as each alone" if batch > 1 else "an answer repeats at batch 1",
            in_batch(batch),
            4 + batch / 4,
        )
        for batch in BATCHES
    ),
    Check(
        "features.batch.graphs", "batches at which graphs change kernels answer as alone", graph_batches, 20
    ),
    Check("features.prefix-cache", "answers from a warm prefix cache equal cold ones", prefix_cache, 20),
    Check(
        "features.streaming.completion", "a streamed completion equals the whole one", streamed_completion, 3
    ),
    Check("features.streaming.chat", "a streamed chat answer equals the whole one", streamed_chat, 3),
    Check(
        "features.logprobs.rescored",
        "decoded tokens keep their log probabilities when read again",
        rescored,
        6,
    ),
    Check("features.speculation", "speculated tokens are the model's own first choices", speculation, 8),
)
