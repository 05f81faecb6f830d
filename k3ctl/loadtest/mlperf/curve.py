"""The regions of a Pareto curve (rules §5.4 and §5.5): equal thirds of log2(C_max − C_min) above C_min. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from k3ctl.facts.mlperf import kimi_k3

LOW_LATENCY, LOW, MEDIUM, HIGH = "low_latency", "low_concurrency", "med_concurrency", "high_concurrency"
MANDATORY = (LOW_LATENCY, LOW, MEDIUM, HIGH)


@dataclass(frozen=True)
class Regions:
    """First and last concurrency of each region; ``margin``: last one that counts at all."""

    bounds: dict[str, tuple[int, int]]
    margin: int

    def of(self, concurrency: int) -> str | None:
        """The region of a concurrency; ``margin`` above the last one; None outside of all."""
        for name, (first, last) in self.bounds.items():
            if first <= concurrency <= last:
                return name
        highest = self.bounds[HIGH][1]
        return "margin" if highest < concurrency <= self.margin else None


def regions(points: Sequence[int], most: int | None = None) -> Regions | None:
    """The regions that the points make; ``most``: the declared C_max, by default the largest point.

    None when the rules define none: no point at 32 or below, or C_max not above 32.
    """
    rule = kimi_k3().curve
    least, highest = min(points, default=0), most or max(points, default=0)
    if not 1 <= least <= rule["ultra_low"] or highest <= rule["ultra_low"]:
        return None
    third = math.log2(highest - least) / 3
    low_end = round(least + 2**third)
    medium_end = round(least + 2 ** (2 * third))
    ends = {LOW: (least + 1, low_end), MEDIUM: (low_end + 1, medium_end), HIGH: (medium_end + 1, highest)}
    # where rounding leaves a region empty, its last concurrency is the one that satisfies it (rules §5.4)
    bounds = {name: (min(first, last), last) for name, (first, last) in ends.items()}
    return Regions({LOW_LATENCY: (1, least), **bounds}, math.ceil(rule["margin"] * highest))


def placed(points: Sequence[int], most: int | None = None) -> dict[int, str]:
    """The region in each point's file: the first point in a region satisfies it, others are `submitters_choice`."""
    found = regions(points, most)
    taken: set[str] = set()
    out: dict[int, str] = {}
    for concurrency in sorted(set(points)):
        name = found.of(concurrency) if found else None
        fresh = name in MANDATORY and name not in taken
        out[concurrency] = str(name) if fresh else "submitters_choice"
        taken.add(str(name))
    return out
