"""The sampler's judge against samplers whose truth is known: right ones pass, skewed ones are found, by name."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from k3ctl.validate import statistics
from k3ctl.validate.checks import sampling
from k3ctl.validate.checks.sampling import TOLD, Sampling
from k3ctl.validate.divergence import Step
from k3ctl.validate.record import Outcome
from k3ctl.validate.statistics import Draw

VOCABULARY = 60


def model(rng: random.Random) -> list[float]:
    """Log probabilities of a vocabulary, in no order."""
    scores = [rng.gauss(0, 2.4) for _ in range(VOCABULARY)]
    total = math.log(math.fsum(map(math.exp, scores)))
    return [score - total for score in scores]


def draw(logprobs: Sequence[float], rng: random.Random, s: Sampling) -> int:
    """An own sampler, in the usual order: temperature, top-k, min-p, top-p."""
    order = sorted(range(len(logprobs)), key=lambda i: -logprobs[i])
    weights = {i: math.exp((logprobs[i] - logprobs[order[0]]) / s.temperature) for i in order[: s.top_k]}
    if s.min_p:
        weights = {i: w for i, w in weights.items() if w >= s.min_p}
    if s.top_p:
        total, mass, kept = sum(weights.values()), 0.0, {}
        for i, w in weights.items():
            if mass >= s.top_p:
                break
            kept[i] = w
            mass += w / total
        weights = kept
    return rng.choices(list(weights), list(weights.values()))[0]


def answers(asked: Sampling, seed: int = 1, tokens: int = 640) -> list[list[Step]]:
    """A server's answers: sampled as ``asked``, with its raw log probabilities of the likeliest tokens."""
    rng = random.Random(seed)
    steps = []
    for _ in range(tokens):
        logprobs = model(rng)
        token = draw(logprobs, rng, asked)
        likely = sorted(range(VOCABULARY), key=lambda i: -logprobs[i])[:TOLD]
        top = {f"token_id:{i}": logprobs[i] for i in {*likely, token}}
        steps.append(Step(f"token_id:{token}", logprobs[token], top))
    return [steps[n::8] for n in range(8)]


CASES = [
    Sampling(),
    Sampling(0.6, top_k=TOLD),
    Sampling(top_k=5),
    Sampling(top_k=TOLD, top_p=0.7),
    Sampling(top_k=TOLD, min_p=0.1),
]


@pytest.mark.parametrize("asked", CASES, ids=lambda s: s.told)
def test_a_right_sampler_passes_with_its_power_told(asked: Sampling) -> None:
    judged = sampling.judge(answers(asked), asked)
    assert judged.outcome is Outcome.PASSED, judged.statement
    assert judged.evidence["false_alarm_rate"] == 1e-3
    assert "power" in judged.statement and judged.evidence["seeds"] == "1…8"


@pytest.mark.parametrize(
    ("asked", "did"),
    [
        (Sampling(), Sampling(1.3)),
        (Sampling(), Sampling(0.8)),
        (Sampling(), Sampling(top_k=1)),
        (Sampling(), Sampling(top_p=0.9)),
        (Sampling(0.6, top_k=TOLD), Sampling(1.0, top_k=TOLD)),
        (Sampling(0.6, top_k=TOLD), Sampling(0.6)),
        (Sampling(top_k=5), Sampling(top_k=6)),
        (Sampling(top_k=5), Sampling()),
        (Sampling(top_k=5), Sampling(top_k=4)),
        (Sampling(top_k=TOLD, top_p=0.7), Sampling(top_k=TOLD)),
        (Sampling(top_k=TOLD, top_p=0.7), Sampling(top_k=TOLD, top_p=0.5)),
        (Sampling(top_k=TOLD, min_p=0.1), Sampling(top_k=TOLD, min_p=0.02)),
    ],
    ids=lambda s: s.told,
)
def test_a_sampler_that_does_otherwise_is_found(asked: Sampling, did: Sampling) -> None:
    assert sampling.judge(answers(did), asked).outcome is Outcome.FAILED


def test_too_few_tokens_and_log_probabilities_that_are_no_reference_are_unknown() -> None:
    assert sampling.judge(answers(Sampling(), tokens=24), Sampling()).outcome is Outcome.UNKNOWN
    assert sampling.judge([], Sampling()).outcome is Outcome.UNKNOWN
    blind = [[Step(s.token, s.logprob, {s.token: s.logprob}) for s in run] for run in answers(Sampling())]
    assert sampling.judge(blind, Sampling()).outcome is Outcome.UNKNOWN
    after = [
        [Step(s.token, s.logprob, {**s.top, "token_id:x": -9999.0}) for s in run]
        for run in answers(Sampling())
    ]
    assert sampling.judge(after, Sampling()).outcome is Outcome.UNKNOWN


def test_names_and_order_of_tokens_change_nothing() -> None:
    steps = answers(Sampling())
    renamed = [
        [Step("n" + s.token, s.logprob, {"n" + k: v for k, v in reversed(s.top.items())}) for s in run]
        for run in steps
    ]
    one, other = (sampling.judge(runs, Sampling()).evidence for runs in (steps, renamed))
    assert one == other


def test_false_alarms_are_as_rare_as_stated_and_power_is_what_is_found() -> None:
    rng = random.Random(5)
    p = [0.5, 0.3, 0.15, 0.05]
    wrong = list(statistics.tempered(1.6)(p))

    def rejected(of: Sequence[float]) -> tuple[bool, float]:
        taken = [Draw(p, rng.choices(range(4), of)[0]) for _ in range(120)]
        fit = statistics.fit(taken, lambda _: wrong, "wrong", alpha=0.05, simulations=400)
        return fit.rejected, fit.power

    false = sum(rejected(p)[0] for _ in range(60))
    assert false <= 9  # 3 expected
    found = [rejected(wrong) for _ in range(60)]
    assert abs(sum(hit for hit, _ in found) / 60 - found[0][1]) < 0.2


@pytest.mark.parametrize(("hits", "of"), [(0, 10), (5, 10), (10, 10), (97, 100)])
def test_wilsons_interval_holds_its_share(hits: int, of: int) -> None:
    low, high = statistics.wilson(hits, of)
    assert 0 <= low <= hits / of <= high <= 1
    assert statistics.wilson(10 * hits, 10 * of)[1] - statistics.wilson(10 * hits, 10 * of)[0] < high - low


def steps_of(words: str, *, shift: float = 0.0) -> list[Step]:
    return [Step(word, -0.5 + shift, {word: -0.5 + shift, "other": -1.5}) for word in words.split()]


@pytest.mark.parametrize(
    ("runs", "outcome"),
    [
        (["a b c", "a b c", "d e f", "a x c"], Outcome.PASSED),
        (["a b c", "a b d", "d e f", "g h i"], Outcome.FAILED),
        (["a b c", "a b c", "a b c", "a b c"], Outcome.FAILED),
        (["", "", "", ""], Outcome.UNKNOWN),
    ],
)
def test_seeds_repeat_and_differ(runs: list[str], outcome: Outcome) -> None:
    make: Callable[[str], list[Step]] = steps_of
    assert sampling.judge_seeds([make(run) for run in runs], "cpu").outcome is outcome
