"""Put numbers side by side only where their conditions are equal; say of every other pair why not. Pure.

A *point* is one number with its conditions. Ours come from a summary, published ones from ``facts.published``.
Two points are comparable when every condition (``conditions.CONDITIONS``) is known on both sides and equal: for
*better* as much as for *worse*.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from k3ctl.deployment import Deployment
from k3ctl.facts.published import Anchor, anchors
from k3ctl.loadtest import conditions, percentiles, stats
from k3ctl.loadtest.conditions import CONDITIONS
from k3ctl.loadtest.workload import Workload

UNITS = {
    "output_tok_s": "output tok/s of the server",
    "decode_tok_s": "decode-only tok/s of the TP group",
    "total_tok_s_per_gpu": "input + output tok/s per GPU",
    "itl_ms": "mean ITL in ms",
    "itl_p50_ms": "median ITL in ms",
    "joules_per_output_token": "joules per output token, all GPUs",
}
LOWER_IS_BETTER = frozenset({"itl_ms", "itl_p50_ms", "ttft_ms", "joules_per_output_token"})


@dataclass(frozen=True)
class Point:
    """One number: ``value`` in ``unit``; ``low..high`` is the range that its own arithmetic allows."""

    source: str
    conditions: Mapping[str, Any]
    value: float
    low: float
    high: float
    resolution: float | None = None
    """Smallest share by which the number can differ from itself; None: not known, which is not none."""
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """Two points. ``reasons`` is empty when they are comparable."""

    ours: Point
    other: Point
    reasons: tuple[str, ...]

    @property
    def ratio(self) -> float | None:
        """Ours over the other, 1 inside the other's own range; None when they are not comparable."""
        if self.reasons or not self.other.value:
            return None
        if self.other.low <= self.ours.value <= self.other.high:
            return 1.0
        nearest = self.other.low if self.ours.value < self.other.low else self.other.high
        return self.ours.value / nearest

    @property
    def noise(self) -> float | None:
        """Share by which the ratio may be off; None when that is not known of both numbers."""
        return combined(self.ours.resolution, self.other.resolution)

    @property
    def verdict(self) -> str:
        """``same``, or ``better`` or ``worse`` beyond both numbers' resolution; empty when not comparable.

        ``undecided`` when either resolution is not known: any difference may then be noise.
        """
        if self.ratio is None:
            return ""
        noise = self.noise
        if noise is None:
            return "undecided"
        if abs(self.ratio - 1) <= noise:
            return "same"
        better = (self.ratio > 1) != (self.ours.conditions["unit"] in LOWER_IS_BETTER)
        return "better" if better else "worse"


def published(ids: Iterable[str] | None = None) -> list[Point]:
    """The shipped anchors as points; all, or those with the given ids."""
    wanted = None if ids is None else set(ids)
    return [
        point
        for anchor in anchors()
        if wanted is None or anchor.id in wanted
        for point in _anchor_points(anchor)
    ]


def _anchor_points(anchor: Anchor) -> list[Point]:
    shared = {
        name: getattr(anchor, name)
        for name, condition in CONDITIONS.items()
        if condition.published and name != "concurrency"
    }
    return [
        Point(
            source=f"{anchor.id} · {anchor.cited}",
            conditions={**shared, "concurrency": row.concurrency},
            value=row.value,
            low=row.value if row.low is None else row.low,
            high=row.value if row.high is None else row.high,
            resolution=1 / row.completed if row.completed else None,
            note=row.note,
        )
        for row in anchor.rows
    ]


def points(summary: Mapping[str, Any], *, source: str, unit: str) -> list[Point]:
    """The valid rows of a summary as points in ``unit``; a row that failed a guard never becomes a point."""
    found = []
    for row in summary["rows"]:
        value = measured(row, unit)
        if not row["valid"] or value is None:
            continue
        found.append(
            Point(
                source,
                {**_conditions(summary, row), "unit": unit},
                value,
                value,
                value,
                _resolution(row, unit),
            )
        )
    return found


def measured(row: Mapping[str, Any], unit: str) -> float | None:
    """The figure of a summary row in a unit; None when it was not measured."""
    values = {
        "output_tok_s": row["output_tok_s"],
        "decode_tok_s": row["decode_tok_s"],
        "total_tok_s_per_gpu": row["total_tok_s_per_gpu"],
        "itl_ms": row["itl_ms"]["mean"],
        "itl_p50_ms": row["itl_ms"]["p50"],
        "ttft_ms": row["ttft_ms"]["mean"],
        "joules_per_output_token": row["energy"]["joules_per_output_token"]
        if row["energy"]["valid"]
        else None,
    }
    value = values[unit]
    return None if value is None else float(value)


def _conditions(summary: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    deployment = summary["deployment"]
    acceptance = "synthetic" if row["synthetic"] else deployment["acceptance"]
    return {
        **summary["conditions"],
        "path": path_taken(deployment["decode_backend"], row),
        "acceptance": acceptance,
        "acceptance_length": deployment["synthetic_acceptance_length"] if acceptance == "synthetic" else None,
        "concurrency": row["concurrency"],
        "prefix_reset": row["prefix_cache_reset"] if _repeats(summary["conditions"]) else None,
    }


def _repeats(load: Mapping[str, Any]) -> bool:
    """Whether prompts share text with earlier ones: only then does it matter what a prefix cache still held."""
    return bool(load.get("sessions") or (load.get("load") or {}).get("prefix_tokens"))


def path_taken(decode_backend: str | None, row: Mapping[str, Any]) -> str | None:
    """``specialized``, ``stock``, ``mixed``, or None: the witness decides, a setting proves only stock.

    Steps that carry a prefill are standard by design and do not count.
    """
    share = ((row["server"] or {}).get("path") or {}).get("decode_share")
    if share is None:
        return "stock" if decode_backend == "auto" else None
    return "specialized" if share >= 0.95 else "stock" if share <= 0.05 else "mixed"


def _resolution(row: Mapping[str, Any], unit: str) -> float | None:
    if unit in ("output_tok_s", "total_tok_s_per_gpu"):
        return _throughput_share(row)
    if unit == "joules_per_output_token":
        return combined(_throughput_share(row), row["energy"]["edge_share"])
    stat = row["ttft_ms"] if unit == "ttft_ms" else row["itl_ms"]
    return stats.interval_share(percentiles.stat_of(stat))


def _throughput_share(row: Mapping[str, Any]) -> float | None:
    """The row's resolution; None without an interval, for then it is the quantisation step alone."""
    share = row["resolution_share"]
    return None if share is None or row["interval_share"] is None else float(share)


def differences(
    ours: Mapping[str, Any],
    other: Mapping[str, Any],
    *,
    published: bool = False,
    varied: frozenset[str] = frozenset(),
) -> tuple[str, ...]:
    """Why two numbers cannot be compared, one sentence each; empty when their conditions are equal."""
    return conditions.differences(ours, other, published=published, varied=varied, told=_told)


def _told(name: str, value: Any) -> str:
    return UNITS.get(value, str(value)) if name == "unit" else str(value)


def references(load: Workload, deployment: Deployment) -> dict[str, dict[str, Any]]:
    """Published output tok/s by concurrency that hold for this deployment, before anything is measured.

    The path is what the server was asked for; whether it ran is only known afterwards.
    """
    paths = {"auto": "stock", "latency_specialized": "specialized"}
    mine = {
        **asdict(deployment),
        "path": paths.get(deployment.decode_backend or ""),
        "acceptance_length": deployment.synthetic_acceptance_length,
        "prompt_tokens": load.prompt_tokens + (load.prefix_tokens or 0),
        "output_tokens": load.output_tokens,
        "unit": "output_tok_s",
    }
    found: dict[str, dict[str, Any]] = {}
    for point in published(load.anchors):
        concurrency = point.conditions["concurrency"]
        if concurrency in load.concurrency and not differences(
            {**mine, "concurrency": concurrency}, point.conditions, published=True
        ):
            found[str(concurrency)] = {"output_tok_s": [point.low, point.high], "label": point.source}
    return found


def related(summary: Mapping[str, Any]) -> list[str]:
    """Ids of the anchors worth naming: those of the preset, and those of the same prompt and output lengths."""
    asked = summary["asked"]
    lengths = (asked["prompt_tokens"], asked["output_tokens"])
    return [
        anchor.id
        for anchor in anchors()
        if anchor.id in asked["anchors"] or (anchor.prompt_tokens, anchor.output_tokens) == lengths
    ]


def against_published(summary: Mapping[str, Any], ids: Sequence[str] | None = None) -> list[Comparison]:
    """Our rows beside the published ones at the same concurrency, each in the published unit."""
    out = []
    for other in published(ids):
        unit, concurrency = other.conditions["unit"], other.conditions["concurrency"]
        for ours in points(summary, source="this run", unit=unit):
            if ours.conditions["concurrency"] == concurrency:
                reasons = differences(ours.conditions, other.conditions, published=True)
                out.append(Comparison(ours, other, reasons))
    return out


def against_summary(
    ours: Mapping[str, Any],
    other: Mapping[str, Any],
    *,
    source: str,
    unit: str,
    varied: frozenset[str] = frozenset(),
) -> list[Comparison]:
    """Rows of two summaries at the same concurrency. ``varied``: conditions that were changed on purpose."""
    theirs = {point.conditions["concurrency"]: point for point in points(other, source=source, unit=unit)}
    out = []
    for mine in points(ours, source="this run", unit=unit):
        if (there := theirs.get(mine.conditions["concurrency"])) is not None:
            out.append(Comparison(mine, there, differences(mine.conditions, there.conditions, varied=varied)))
    return out


def combined(*shares: float | None) -> float | None:
    """Root of the sum of squares: the resolution of a ratio of independent numbers; None when one is not known."""
    known = [share for share in shares if share is not None and math.isfinite(share) and share >= 0]
    return math.hypot(*known) if len(known) == len(shares) else None
