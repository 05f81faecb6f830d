"""A score with its interval, what is asked of it, and whether a published one may stand beside it. Pure.

A published score is compared only where every setting that moves scores is stated by its source and equal here; else
each difference is named. A score is judged by a floor: passed when the whole interval lies above it, failed when the
whole interval lies below, unknown between, and without a floor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from k3ctl.facts.published import Accuracy
from k3ctl.validate.record import Judged, failed, passed, unknown
from k3ctl.validate.statistics import wilson

Z = 1.96
"""95 % intervals."""
EMPTY_SHARE = 0.02
"""Share of empty answers from which a score says more of the length limit than of the model."""


@dataclass(frozen=True)
class Score:
    """Points per question (0 to 1) under one filter. ``empty``: answers without text, cut while thinking."""

    filter: str
    points: tuple[float, ...]
    empty: int = 0

    @property
    def mean(self) -> float:
        """Share of right answers, or mean of partial points; 0 without questions."""
        return math.fsum(self.points) / len(self.points) if self.points else 0.0

    @property
    def whole(self) -> bool:
        """Every answer is right or wrong, nothing between."""
        return all(point in (0.0, 1.0) for point in self.points)

    @property
    def interval(self) -> tuple[float, float]:
        """95 %: Wilson's for right or wrong, the normal one for partial points; 0 to 1 without questions."""
        count = len(self.points)
        if self.whole:
            low, high = wilson(round(math.fsum(self.points)), count, Z)
            return min(low, self.mean), max(high, self.mean)  # at 0 and 1 a rounding error lies between
        if count < 2:
            return 0.0, 1.0
        variance = math.fsum((point - self.mean) ** 2 for point in self.points) / (count - 1)
        half = Z * math.sqrt(variance / count)
        return max(0.0, self.mean - half), min(1.0, self.mean + half)

    @property
    def told(self) -> str:
        """One phrase for people."""
        low, high = self.interval
        right = (
            f"{math.fsum(self.points):.0f} of {len(self.points)}, "
            if self.whole
            else f"{len(self.points)} answers, "
        )
        return f"{self.mean:.4f} ({right}95 % {low:.4f} to {high:.4f}, {self.filter})"

    def json(self) -> dict[str, Any]:
        """Plain data."""
        low, high = self.interval
        return {
            "filter": self.filter,
            "score": round(self.mean, 6),
            "questions": len(self.points),
            "low": round(low, 6),
            "high": round(high, 6),
            "interval": "Wilson" if self.whole else "normal",
            "empty_answers": self.empty,
            "points": [int(point) if self.whole else round(point, 4) for point in self.points],
        }


def differences(settings: Mapping[str, Any], published: Accuracy) -> Iterator[str]:
    """Why a published score is not comparable: what its source does not say, and what is another here."""
    for name, theirs in published.settings.items():
        mine = settings.get(name)
        if theirs is None:
            yield f"the source does not state {name}"
        elif mine is None:
            yield f"{name} is {theirs} there and not known here"
        elif mine != theirs:
            yield f"{name} is {mine} here and {theirs} there"


def beside(settings: Mapping[str, Any], score: Score, published: Sequence[Accuracy]) -> list[dict[str, Any]]:
    """Every published score of the same set and filter: compared, or why not."""
    found = []
    for entry in published:
        if entry.filter not in (score.filter, None):
            continue
        reasons = list(differences(settings, entry))
        if entry.filter is None:
            reasons.append("the source does not state filter")
        found.append(
            {
                "id": entry.id,
                "source": entry.cited,
                "score": entry.score,
                "right": entry.right,
                "questions": entry.questions,
                "not_compared": reasons,
                "inside_interval": None if reasons else score.interval[0] <= entry.score <= score.interval[1],
            }
        )
    return found


def judge(
    scores: Sequence[Score], floor: float | None, settings: Mapping[str, Any], published: Sequence[Accuracy]
) -> Judged:
    """The first score decides; every score is told with what stands beside it."""
    if not scores or not scores[0].points:
        return unknown("no question was answered", settings=dict(settings))
    first = scores[0]
    rows = {score.filter: beside(settings, score, published) for score in scores}
    evidence = {
        "scores": [score.json() for score in scores],
        "settings": dict(settings),
        "floor": floor,
        "published": rows,
    }
    said = f"{first.told}{_published(rows[first.filter])}"
    if first.empty > EMPTY_SHARE * len(first.points):
        return unknown(
            f"{first.empty} of {len(first.points)} answers are empty: cut while thinking? raise max_gen_toks; {said}",
            **evidence,
        )
    comparable = [row for row in rows[first.filter] if row["inside_interval"] is not None]
    low, high = first.interval
    if any(row["score"] > high for row in comparable):
        return failed(f"below the published score under the same settings: {said}", **evidence)
    if floor is not None and high < floor:
        return failed(f"below {floor:g}: {said}", **evidence)
    if floor is not None and low >= floor:
        return passed(f"at least {floor:g}: {said}", **evidence)
    if comparable and floor is None:
        return passed(f"no worse than published under the same settings: {said}", **evidence)
    why = "too few questions to tell it from" if floor is not None else "nothing to judge it by: no floor,"
    return unknown(
        f"{why} {f'{floor:g}' if floor is not None else 'no comparable published score'}: {said}", **evidence
    )


def _published(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    row = next((row for row in rows if not row["not_compared"]), rows[0])
    if row["not_compared"]:
        return f"; published {row['score']:.4f} ({row['source']}) not compared: {'; '.join(row['not_compared'][:2])}"
    return f"; published {row['score']:.4f} ({row['source']})"
