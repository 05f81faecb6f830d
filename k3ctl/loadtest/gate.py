"""Has it become slower? Two summaries, a threshold, and each number's own resolution. Pure.

A change counts as a regression when it is worse than the threshold even after the resolution is given to
the new number; it is *undecided* when the resolution is too coarse to say. Nothing is averaged over
concurrencies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from k3ctl.loadtest import compare
from k3ctl.loadtest.compare import Comparison

GATED = ("output_tok_s", "itl_ms", "ttft_ms", "joules_per_output_token")


@dataclass(frozen=True)
class GateVerdict:
    """One metric at one concurrency. ``change`` is a share, positive when the new number is better."""

    metric: str
    concurrency: int
    base: float
    new: float
    change: float
    resolution: float
    outcome: str
    """``regression``, ``undecided``, ``same`` or ``improvement``."""


def gate(
    base: Mapping[str, Any], new: Mapping[str, Any], *, threshold: float, varied: frozenset[str] = frozenset()
) -> tuple[list[GateVerdict], list[Comparison]]:
    """Verdicts of every comparable pair, and the pairs that are not comparable: their conditions differ, or nobody
    knows how far a number may be off.

    ``varied``: conditions that were changed on purpose, and are not asked to be equal.
    """
    verdicts: list[GateVerdict] = []
    refused: list[Comparison] = []
    for metric in GATED:
        for pair in compare.against_summary(new, base, source="base", unit=metric, varied=varied):
            if pair.reasons:
                refused.append(pair)
            elif (noise := pair.noise) is None:
                refused.append(replace(pair, reasons=(_unresolved(pair, metric),)))
            else:
                verdicts.append(_verdict(pair, metric, threshold, noise))
    return verdicts, refused


def missing(base: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What ``base`` has and ``new`` has not, rows and single figures: what they would have shown is not known."""
    found = {row["concurrency"]: row for row in new["rows"] if row["valid"]}
    lines = []
    for row in base["rows"]:
        there = found.get(row["concurrency"])
        if row["valid"] and there is None:
            lines.append(f"c={row['concurrency']}: no valid row in the new bundle")
        elif row["valid"] and there is not None:
            lines += [
                f"c={row['concurrency']}: no {metric} in the new bundle"
                for metric in GATED
                if compare.measured(row, metric) is not None and compare.measured(there, metric) is None
            ]
    return lines


def _unresolved(pair: Comparison, metric: str) -> str:
    sides = {"base": pair.other, "new": pair.ours}
    names = " and ".join(side for side, point in sides.items() if compare.combined(point.resolution) is None)
    return (
        f"{metric} at c={pair.ours.conditions['concurrency']}: how far it may be off is not known ({names})"
    )


def _verdict(pair: Comparison, metric: str, threshold: float, noise: float) -> GateVerdict:
    ratio = pair.ours.value / pair.other.value
    change = 1 / ratio - 1 if metric in compare.LOWER_IS_BETTER else ratio - 1
    return GateVerdict(
        metric=metric,
        concurrency=int(pair.ours.conditions["concurrency"]),
        base=pair.other.value,
        new=pair.ours.value,
        change=change,
        resolution=noise,
        outcome=outcome(change, noise, threshold),
    )


def outcome(change: float, noise: float, threshold: float) -> str:
    """``change`` against ``threshold``, given that it may be off by ``noise`` either way (all shares)."""
    if change + noise < -threshold:
        return "regression"
    if change - noise < -threshold:
        return "undecided"
    return "improvement" if change - noise > 0 else "same"
