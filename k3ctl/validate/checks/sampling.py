"""Does the sampler draw from the distributions that the server itself tells?

The reference of every token are its log probabilities before sampling parameters (vLLM's ``raw_logprobs``), to which
temperature, top-k, top-p and min-p are applied here. With at most 20 told, only top-k up to 20 has a whole reference at
another temperature than 1; the cases are chosen so. A token's distribution is that after what came before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from k3ctl.server.client import BadAnswer
from k3ctl.validate import divergence, statistics
from k3ctl.validate.checks import prompts
from k3ctl.validate.divergence import Step
from k3ctl.validate.record import Check, Judged, Outcome, failed, not_run, passed, unknown
from k3ctl.validate.session import Session, said
from k3ctl.validate.statistics import Draw

TOLD = 20
"""vLLM's usual ``max_logprobs``."""
AT_ONCE = 8
EDGE = 1e-3
"""A token whose cumulative probability is this near to a cut is left out: rounding decides about it."""
ENOUGH_POWER = 0.8
CUT_OFF = -9000.0
"""vLLM writes -9999 for the log probability of a token that sampling parameters excluded."""


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters of a case."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def body(self) -> dict[str, Any]:
        """As a request has them."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def cut(self) -> bool:
        """It excludes tokens that are told."""
        return self.top_p is not None or self.min_p is not None or (self.top_k or TOLD) < TOLD

    @property
    def uncut(self) -> Sampling:
        """The same if the cut were ignored."""
        return Sampling(self.temperature, None if self.temperature == 1.0 else TOLD)

    @property
    def told(self) -> str:
        """One phrase for people."""
        return ", ".join(f"{name} {value:g}" for name, value in self.body().items())


def reference(logprobs: Sequence[float], sampling: Sampling) -> list[float] | None:
    """Probabilities of the told tokens (most likely first), and at the end that of all others together.

    ``logprobs``: before sampling parameters. None where a cut lies within ``EDGE`` of a token: rounding decides there.
    """
    if (
        sampling.top_k is None
        and sampling.temperature == 1.0
        and sampling.top_p is None
        and sampling.min_p is None
    ):
        told = [math.exp(value) for value in logprobs]
        return [*told, max(0.0, 1.0 - math.fsum(told))]
    kept = list(logprobs[: sampling.top_k])
    if len(logprobs) > len(kept) > 0 and abs(logprobs[len(kept)] - kept[-1]) < EDGE:
        return None
    scaled = _normal([math.exp((value - kept[0]) / sampling.temperature) for value in kept])
    if sampling.min_p is not None:
        shares = [p / scaled[0] for p in scaled]
        if any(abs(share - sampling.min_p) < EDGE for share in shares):
            return None
        scaled = _normal([p for p, share in zip(scaled, shares, strict=True) if share >= sampling.min_p])
    if sampling.top_p is not None:
        before = [math.fsum(scaled[:i]) for i in range(len(scaled))]
        if any(abs(mass - sampling.top_p) < EDGE for mass in before):
            return None
        scaled = _normal([p for p, mass in zip(scaled, before, strict=True) if mass < sampling.top_p])
    return [*scaled, *([0.0] * (len(logprobs) - len(scaled))), 0.0]


def _normal(weights: Sequence[float]) -> list[float]:
    total = math.fsum(weights)
    return [weight / total for weight in weights]


@dataclass(frozen=True)
class Drawn:
    """The tokens that had a reference; ``ignored``: chance that ignoring the cut would have shown in one of them."""

    draws: tuple[Draw, ...]
    ignored: float


def draws(steps: Sequence[Step], sampling: Sampling) -> Drawn:
    """The tokens of an answer as draws; those whose reference cannot be known are left out."""
    found = []
    unseen = 1.0
    for step in steps:
        order = sorted(step.top.items(), key=lambda item: -item[1])[:TOLD]
        values, names = [value for _, value in order], [name for name, _ in order]
        probabilities = reference(values, sampling)
        if probabilities is not None:
            found.append(Draw(probabilities, names.index(step.token) if step.token in names else len(names)))
            uncut = reference(values, sampling.uncut) or ()
            unseen *= 1.0 - math.fsum(p for p, kept in zip(uncut, probabilities, strict=False) if kept <= 0)
    return Drawn(tuple(found), 1.0 - unseen)


def ask(session: Session, sampling: Sampling, requests: int, tokens: int) -> list[Sequence[Step]]:
    """Answers with the likeliest tokens told, under seeds 1, 2, 3, …"""
    bodies = [
        {
            **prompts.greedy(prompts.tokens(16, seed=500 + n), tokens, logprobs=TOLD),
            **sampling.body(),
            "seed": n + 1,
        }
        for n in range(requests)
    ]
    return [divergence.steps(answer) for answer in session.many(session.complete, bodies, AT_ONCE)]


def judge(answers: Sequence[Sequence[Step]], sampling: Sampling, factor: float = 1.25) -> Judged:
    """Whether the answers' tokens were drawn as asked. ``factor``: of the temperature that must be discovered."""
    steps = [step for answer in answers for step in answer]
    seeds = f"1…{len(answers)}"
    if not steps or any(len(step.top) < 2 for step in steps):
        return unknown("the server does not tell the likeliest tokens", seeds=seeds)
    if any(value < CUT_OFF for step in steps for value in step.top.values()):
        return unknown(
            "the server tells log probabilities after sampling parameters: no reference", seeds=seeds
        )
    drawn = draws(steps, sampling)
    outside = sum(d.probabilities[d.category] <= 0 for d in drawn.draws)
    if outside:
        text = f"{outside} of {len(drawn.draws)} tokens are ones that {sampling.told} excludes"
        return failed(text, seeds=seeds, sampling=sampling.body(), draws=len(drawn.draws))
    if not drawn.draws:
        return unknown("no token had a reference", seeds=seeds)
    return _fitted(drawn, sampling, factor, seeds)


def _fitted(drawn: Drawn, sampling: Sampling, factor: float, seeds: str) -> Judged:
    """Where tokens are excluded, the power that counts is that of seeing one; else that of the chi-square test."""
    fit = statistics.fit(drawn.draws, statistics.tempered(factor), f"a temperature {factor:g} times too high")
    data = {"seeds": seeds, "sampling": sampling.body(), **fit.json()}
    text = f"chi-square {fit.statistic:.1f} over {fit.categories} categories of {fit.draws} tokens, p {fit.p:.3g}"
    if sampling.cut:
        data["power_against_no_cut"] = round(drawn.ignored, 4)
    if fit.rejected:
        return failed(f"{sampling.told}: not drawn from the server's own distribution ({text})", **data)
    power, against = (drawn.ignored, "ignoring it") if sampling.cut else (fit.power, fit.alternative)
    if power < ENOUGH_POWER:
        return unknown(
            f"{sampling.told}: {text}, but {against} would show in {power:.0%} of trials only", **data
        )
    return passed(f"{sampling.told}: {text}; power {power:.0%} against {against}", **data)


def case(
    *samplings: Sampling, requests: int = 32, tokens: int = 24, factor: float = 1.25
) -> Callable[[Session], Judged]:
    """A check of one or several sets of parameters: all must fit."""

    def run(session: Session) -> Judged:
        judged: dict[str, Judged] = {}
        for sampling in samplings:
            try:
                judged[sampling.told] = judge(ask(session, sampling, requests, tokens), sampling, factor)
            except BadAnswer as error:
                if error.status != 400:
                    raise
                return not_run(f"the server refuses {sampling.told}: {said(error)}")
        return together(judged)

    return run


def together(judged: Mapping[str, Judged]) -> Judged:
    """The worst of several; all of their evidence."""
    order = (Outcome.FAILED, Outcome.UNKNOWN, Outcome.NOT_RUN, Outcome.PASSED)
    worst = min(judged.values(), key=lambda one: order.index(one.outcome))
    if len(judged) == 1:
        return worst
    text = (
        worst.statement
        if worst.outcome is not Outcome.PASSED
        else "; ".join(one.statement for one in judged.values())
    )
    return Judged(worst.outcome, text, {name: dict(one.evidence) for name, one in judged.items()})


def seeds(session: Session) -> Judged:
    """The same seed twice, and other seeds, one request at a time."""
    bodies = [
        {**prompts.greedy(prompts.tokens(16, seed=540), 24), "temperature": 1.0, "seed": seed}
        for seed in (7, 7, 8, 9)
    ]
    return judge_seeds([divergence.steps(session.complete(body)) for body in bodies], session.facts.platform)


def judge_seeds(runs: Sequence[Sequence[Step]], platform: str) -> Judged:
    """``runs``: one seed twice, then two others."""
    first, again, *others = ([step.token for step in run] for run in runs)
    same = divergence.compare(runs[0], runs[1])
    data = {"seeds": [7, 7, 8, 9], **same.json()}
    if not first:
        return unknown("an answer came without tokens", **data)
    if all(other == first for other in others):
        return failed("other seeds give the same tokens at temperature 1", **data)
    if first != again:
        return failed(f"the same seed twice: {same.told}", **data)
    if not same.agrees(divergence.tolerance(platform)):
        return failed(f"the same seed twice: {same.told}", **data)
    return passed(f"seed 7 twice: {same.told}; seeds 8 and 9 differ", **data)


PLAIN = Sampling()
CHECKS: tuple[Check, ...] = (
    Check(
        "features.sampling.temperature",
        "tokens are drawn from the model's distribution at temperatures 1 and 0.6",
        case(PLAIN, Sampling(0.6, top_k=TOLD)),
        30,
    ),
    Check(
        "features.sampling.top-k", "top-k leaves k tokens, in their proportions", case(Sampling(top_k=5)), 15
    ),
    Check(
        "features.sampling.top-p",
        "top-p leaves the tokens that reach p, in their proportions",
        case(Sampling(top_k=TOLD, top_p=0.7)),
        15,
    ),
    Check(
        "features.sampling.min-p",
        "min-p leaves the tokens above its share of the likeliest",
        case(Sampling(top_k=TOLD, min_p=0.1)),
        15,
    ),
    Check("features.seeds", "a seed repeats an answer, another seed changes it", seeds, 4),
)
CANARY = Check(
    "canary.sampling",
    "temperature 1 draws from the model's distribution, coarsely",
    case(PLAIN, requests=10, tokens=16, factor=2.0),
    6,
)
