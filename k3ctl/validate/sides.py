"""Two sides of an A/B comparison: what agrees, where it parts, and whether that is a near tie. Pure.

The rule: greedy answers may part where two tokens are as likely as each other within ``nats``, for there rounding
decides, and rounding depends on kernels and batch. Anywhere else they must be equal, and as long as they are, the log
probabilities of the chosen tokens must lie within ``nats`` of each other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from k3ctl.validate import divergence
from k3ctl.validate.divergence import Comparison, Step
from k3ctl.validate.record import Judged, failed, passed, unknown

Answers = Sequence[Sequence[Step]]
DIGITS = 7
BY_ID = "token_id:"
"""How vLLM tells a token by its id (``return_tokens_as_token_ids``)."""
SHOWN = 5


@dataclass(frozen=True)
class Agreement:
    """Every pair of answers side by side. ``deltas``: |log probability| differences of common tokens, ascending."""

    pairs: tuple[Comparison, ...]
    deltas: tuple[float, ...]
    empty: tuple[int, ...]
    nats: float

    @property
    def parted(self) -> tuple[tuple[int, Comparison], ...]:
        """Pairs that are not equal, with their places."""
        return tuple((place, pair) for place, pair in enumerate(self.pairs) if pair.at is not None)

    @property
    def real(self) -> tuple[tuple[int, Comparison], ...]:
        """Those of them that no near tie explains."""
        return tuple((place, pair) for place, pair in self.parted if not pair.near_tie(self.nats))

    @property
    def token_agreement(self) -> float:
        """Share of the tokens that come before the first difference of their answer; 0 without tokens."""
        length = sum(pair.length for pair in self.pairs)
        return sum(pair.common for pair in self.pairs) / length if length else 0.0

    def quantile(self, share: float) -> float:
        """A quantile of the deltas, in nats; 0 without any."""
        if not self.deltas:
            return 0.0
        return self.deltas[min(len(self.deltas) - 1, math.ceil(share * len(self.deltas)) - 1 if share else 0)]

    def json(self) -> dict[str, Any]:
        """Counts, the distribution of the deltas, and the pairs that part."""
        return {
            "prompts": len(self.pairs),
            "equal_answers": len(self.pairs) - len(self.parted),
            "token_agreement": round(self.token_agreement, 6),
            "near_ties": len(self.parted) - len(self.real),
            "real_divergences": len(self.real),
            "nats": self.nats,
            "common_tokens": len(self.deltas),
            "delta_nats": {
                "mean": round(math.fsum(self.deltas) / len(self.deltas), DIGITS) if self.deltas else None,
                **{f"p{share}": round(self.quantile(share / 100), DIGITS) for share in (50, 90, 99, 100)},
            },
            "parted": [{"prompt": place, **pair.json()} for place, pair in self.parted],
        }


def agreement(mine: Answers, theirs: Answers, nats: float) -> Agreement:
    """Put two sides' answers to the same prompts side by side. Raises ValueError for unequal numbers of answers."""
    pairs = [divergence.compare(one, other) for one, other in zip(mine, theirs, strict=True)]
    deltas = (
        abs(a.logprob - b.logprob)
        for one, other, pair in zip(mine, theirs, pairs, strict=True)
        for a, b in list(zip(one, other, strict=False))[: pair.common]
    )
    empty = tuple(
        place for place, (one, other) in enumerate(zip(mine, theirs, strict=True)) if not one or not other
    )
    return Agreement(
        tuple(pairs), tuple(sorted(math.inf if math.isnan(d) else d for d in deltas)), empty, nats
    )


def judge_tokens(found: Agreement, **evidence: Any) -> Judged:
    """Equal greedy answers, but for near ties."""
    if (judged := _nothing(found, evidence)) is not None:
        return judged
    everything = {**found.json(), **evidence}
    equal = len(found.pairs) - len(found.parted)
    if found.real:
        told = "; ".join(f"prompt {place}: {pair.told}" for place, pair in found.real[:SHOWN])
        return failed(
            f"{len(found.real)} of {len(found.pairs)} answers part at no near tie: {told}", **everything
        )
    ties = f", {len(found.parted)} part at a near tie (margin ≤ {found.nats:g} nats)" if found.parted else ""
    return passed(f"{equal} of {len(found.pairs)} answers are equal{ties}", **everything)


def judge_logprobs(found: Agreement, **evidence: Any) -> Judged:
    """Log probabilities of common tokens that lie close together, wherever the answers part."""
    if (judged := _nothing(found, evidence)) is not None:
        return judged
    everything = {**found.json(), **evidence}
    if not found.deltas:
        return failed("no answer begins with the same token on both sides", **everything)
    worst = found.deltas[-1]
    told = f"{len(found.deltas)} tokens: p50 {found.quantile(0.5):.2g}, p99 {found.quantile(0.99):.2g}, max {worst:.2g}"
    if worst > found.nats:
        beyond = sum(delta > found.nats for delta in found.deltas)
        return failed(
            f"{beyond} log probabilities differ by more than {found.nats:g} nats ({told})", **everything
        )
    return passed(f"log probabilities of {told} nats apart", **everything)


def judge_long(mine: Answers, theirs: Answers, nats: float, **evidence: Any) -> Judged:
    """Long answers: as ``judge_tokens``, and no drift of the log probabilities with length."""
    found = agreement(mine, theirs, nats)
    quarters = [quarter_means(one, other) for one, other in zip(mine, theirs, strict=True)]
    told = {"first_and_last_quarter_nats": [list(pair) for pair in quarters], **evidence}
    judged = judge_tokens(found, **told)
    if judged.outcome != "passed":
        return judged
    deltas = judge_logprobs(found, **told)
    if deltas.outcome != "passed":
        return deltas
    longest = max(pair.length for pair in found.pairs)
    return passed(
        f"{judged.statement}, up to {longest} tokens, within {found.deltas[-1]:.2g} nats", **judged.evidence
    )


def quarter_means(one: Sequence[Step], other: Sequence[Step]) -> tuple[float, float]:
    """Mean |delta| in the first and in the last quarter of what two answers have in common, in nats."""
    common = divergence.compare(one, other).common
    deltas = [abs(a.logprob - b.logprob) for a, b in list(zip(one, other, strict=False))[:common]]
    part = max(1, common // 4)
    means = [math.fsum(some) / len(some) if some else 0.0 for some in (deltas[:part], deltas[-part:])]
    return round(means[0], DIGITS), round(means[1], DIGITS)


def _nothing(found: Agreement, evidence: Mapping[str, Any]) -> Judged | None:
    if not found.pairs:
        return unknown("nothing was compared", **evidence)
    if found.empty:
        return unknown(
            f"{len(found.empty)} of {len(found.pairs)} answers came without tokens and log probabilities",
            **evidence,
        )
    return None


def kept(answers: Answers) -> list[list[list[Any]]]:
    """Answers as plain data: [token, log probability, [[token, log probability], …]] a token.

    A token that is told by its id is kept as a number: a bundle hides texts that look like secrets, and never numbers.
    """
    return [
        [
            [
                _number(step.token),
                _rounded(step.logprob),
                [[_number(name), _rounded(value)] for name, value in step.top.items()],
            ]
            for step in answer
        ]
        for answer in answers
    ]


def read(data: Any) -> list[tuple[Step, ...]]:
    """The answers that ``kept`` wrote. Raises ValueError for anything else."""
    if not isinstance(data, list) or not all(isinstance(answer, list) for answer in data):
        raise ValueError("no kept answers")
    return [tuple(_step(entry) for entry in answer) for answer in data]


def _step(entry: Any) -> Step:
    try:
        token, logprob, top = entry
        return Step(_name(token), float(logprob), {_name(name): float(value) for name, value in top})
    except (TypeError, ValueError) as error:
        raise ValueError(f"no kept token: {error}") from None


def _number(token: str) -> int | str:
    number = token.removeprefix(BY_ID)
    return int(number) if number != token and number.isdecimal() else token


def _name(kept: Any) -> str:
    return f"{BY_ID}{kept}" if isinstance(kept, int) else str(kept)


def _rounded(value: float) -> float | str:
    """JSON knows no infinity: such a value is kept as text, which ``float`` reads back."""
    return round(value, DIGITS) if math.isfinite(value) else str(value)


def prompts(count: int, words: int, seed: int) -> Iterator[str]:
    """Texts that differ from their first word on, about ``words`` words each: the same for the same seed."""
    source = random.Random(seed)
    for number in range(count):
        text = [f"Note {number + 1}."]
        while sum(len(part.split()) for part in text) < words:
            text.append(
                source.choice(_FORMS).format(
                    a=source.choice(_THINGS), b=source.choice(_THINGS), n=source.randint(2, 98)
                )
            )
        yield " ".join(text)


_THINGS = (
    "the harbour", "a lighthouse", "the northern line", "an old ledger", "the workshop", "a glass bridge",
    "the second engine", "a quiet street", "the archive", "an orchard", "the river gauge", "a brass compass",
)  # fmt: skip
_FORMS = (
    "Near {a} one finds {b}, {n} steps further on.",
    "def distance(x): return {n} * x  # from {a} to {b}",
    "Question: how far is it from {a} to {b}? Answer: {n} miles.",
    "1. {a}; 2. {b}; {n}. the rest of the list",
    "In {n} years {a} will belong to {b}.",
)
