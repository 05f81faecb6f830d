"""Did tokens come from these distributions? Pearson's statistic with a p-value and a power by simulation. Pure.

Every token has a distribution of its own, so the textbook's chi-square law does not hold; simulating the same draws
does, also for small counts. Seeds are fixed: the same answers give the same verdict.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ALPHA = 1e-3
"""A healthy server fails a test this often, over seeds; with fixed seeds, always or never."""
SIMULATIONS = 2000
SEED = 20261130
MIN_EXPECTED = 5.0
"""Categories with a smaller expectation are joined."""


@dataclass(frozen=True)
class Draw:
    """One token: the probabilities of its categories, which sum to 1, and the category that came."""

    probabilities: Sequence[float]
    category: int


@dataclass(frozen=True)
class Fit:
    """``p``: share of simulations with so large a statistic; ``power``: share of those of the alternative found."""

    draws: int
    categories: int
    statistic: float
    p: float
    alpha: float
    power: float
    alternative: str
    observed: tuple[float, ...]
    expected: tuple[float, ...]

    @property
    def rejected(self) -> bool:
        """The tokens did not come from these distributions."""
        return self.p < self.alpha

    def json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "draws": self.draws,
            "categories": self.categories,
            "chi_square": round(self.statistic, 3),
            "p": round(self.p, 5),
            "false_alarm_rate": self.alpha,
            "power": round(self.power, 3),
            "power_against": self.alternative,
            "observed": [round(value, 1) for value in self.observed],
            "expected": [round(value, 1) for value in self.expected],
        }


def fit(
    draws: Sequence[Draw],
    alternative: Callable[[Sequence[float]], Sequence[float]],
    named: str,
    *,
    alpha: float = ALPHA,
    simulations: int = SIMULATIONS,
) -> Fit:
    """Test ``draws``; ``alternative`` makes of a distribution the one whose discovery the power is about."""
    width = max(len(draw.probabilities) for draw in draws)
    sums = [math.fsum(d.probabilities[i] for d in draws if i < len(d.probabilities)) for i in range(width)]
    joined = _joined(sums)
    categories = max(joined) + 1
    expected = [0.0] * categories
    for index, value in enumerate(sums):
        expected[joined[index]] += value
    seen = [0] * categories
    for draw in draws:
        seen[joined[draw.category]] += 1
    statistic = _pearson(seen, expected)
    rng = random.Random(SEED)
    null = sorted(_simulated([d.probabilities for d in draws], joined, expected, simulations, rng))
    p = (1 + simulations - bisect.bisect_left(null, statistic - 1e-9)) / (1 + simulations)
    critical = null[min(simulations - 1, math.ceil((1 - alpha) * simulations))]
    other = _simulated(
        [alternative(d.probabilities) for d in draws], joined, expected, simulations // 10, rng
    )
    power = sum(value > critical for value in other) / (simulations // 10)
    return Fit(
        len(draws), categories, statistic, p, alpha, power, named, tuple(map(float, seen)), tuple(expected)
    )


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Interval of a share (Wilson's, 95 % by default); (0, 1) without trials."""
    if trials <= 0:
        return 0.0, 1.0
    share, square = successes / trials, z * z / trials
    centre = (share + square / 2) / (1 + square)
    half = z * math.sqrt(share * (1 - share) / trials + square / (4 * trials)) / (1 + square)
    return max(0.0, centre - half), min(1.0, centre + half)


def tempered(factor: float) -> Callable[[Sequence[float]], Sequence[float]]:
    """The alternative in which the temperature is ``factor`` times what it should be."""

    def changed(probabilities: Sequence[float]) -> Sequence[float]:
        weights = [p ** (1 / factor) if p > 0 else 0.0 for p in probabilities]
        total = math.fsum(weights)
        return [weight / total for weight in weights]

    return changed


def _joined(sums: Sequence[float]) -> list[int]:
    """Category of each index: neighbours are joined until each has an expectation of ``MIN_EXPECTED``."""
    found: list[int] = []
    category, filled = 0, 0.0
    for index, value in enumerate(sums):
        found.append(category)
        filled += value
        if filled >= MIN_EXPECTED and math.fsum(sums[index + 1 :]) >= MIN_EXPECTED:
            category, filled = category + 1, 0.0
    return found


def _simulated(
    distributions: Sequence[Sequence[float]],
    joined: Sequence[int],
    expected: Sequence[float],
    times: int,
    rng: random.Random,
) -> list[float]:
    counts = [[0] * len(expected) for _ in range(times)]
    for probabilities in distributions:
        categories = joined[: len(probabilities)]
        for row, category in zip(counts, rng.choices(categories, probabilities, k=times), strict=True):
            row[category] += 1
    return [_pearson(row, expected) for row in counts]


def _pearson(seen: Sequence[float], expected: Sequence[float]) -> float:
    return math.fsum(
        (o - e) ** 2 / e if e > 0 else (math.inf if o else 0.0) for o, e in zip(seen, expected, strict=True)
    )
