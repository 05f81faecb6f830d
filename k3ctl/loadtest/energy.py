"""Joules of a measuring window from GPU power samples, and the reasons why they are not valid. Pure.

The energy counter is read where every GPU has one, else power is integrated by trapezoids. Both ends of the window are
interpolated between their neighbours. Where both exist they must agree within 5 %.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from k3ctl.loadtest.power import NO_POWER, PowerLog, PowerSample
from k3ctl.loadtest.rows import Row

GAP_S = 3.0
"""Longest pause between two readings (InferenceX's limit)."""
AGREEMENT = 0.05
"""Counter and integrated power may differ by this share (InferenceX's limit)."""
EDGE_SHARE = 0.1
"""The counter's update time as a share of the window: above it the window's ends are guesses."""
POWER_UPDATE_S = 1.0
"""``nvmlDeviceGetPowerUsage`` is the mean of the last second."""

Points = Sequence[tuple[float, float]]
"""(unix seconds, value), ascending."""


@dataclass(frozen=True)
class Energy:
    """A window's energy. ``reasons``: why it is not valid; empty when it is. ``joules`` by NVML index."""

    window_s: float = 0.0
    method: str = ""
    """``counter`` or ``power``; empty when nothing could be computed."""
    joules: dict[int, float] = field(default_factory=dict)
    update_s: float | None = None
    """Longest time between two values of what was read."""
    reasons: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether the figures may be quoted."""
        return bool(self.joules) and not self.reasons

    @property
    def edge_share(self) -> float | None:
        """The share of the window by which its ends may be off."""
        return self.update_s / self.window_s if self.update_s is not None and self.window_s else None


NOT_READ = Energy(reasons=(NO_POWER.unknown,))


def in_window(log: PowerLog, start: float | None, end: float | None, gpus: int | None) -> Energy:
    """The energy of the server's GPUs in ``start..end`` (unix seconds); ``gpus``: how many the deployment has."""
    if log.unknown:
        return Energy(reasons=(log.unknown,))
    if start is None or end is None or end <= start:
        return Energy(reasons=("the client does not say when its measuring window was",))
    window_s = end - start
    if any(later.ts <= sooner.ts for sooner, later in itertools.pairwise(log.samples)):
        return Energy(window_s, reasons=("the clock went backwards between readings",))
    around = _around(log.samples, start, end)
    if len(around) < 2 or around[0].ts > start or around[-1].ts < end:
        return Energy(window_s, reasons=("the readings do not reach over the whole window",))
    own, reasons = _own(around, log.visible, gpus)
    reasons += list(_others(around, own))
    if (gap := max(b.ts - a.ts for a, b in itertools.pairwise(around))) > GAP_S:
        reasons.append(f"no reading for {gap:.1f} s (at most {GAP_S:g} s are allowed)")
    return _measured(around, own, (start, end), reasons)


def figures(energy: Energy, row: Row) -> dict[str, Any]:
    """The JSON of a row: joules per output token, per token and per query, of all GPUs and of each.

    Tokens and queries are those of the throughput (requests finished inside the window), so a joule per token is the
    mean power over tokens per second.
    """
    total = sum(energy.joules.values()) if energy.joules else None
    return {
        "valid": energy.valid,
        "reasons": list(energy.reasons),
        "method": energy.method or None,
        "window_s": energy.window_s,
        "update_s": energy.update_s,
        "edge_share": energy.edge_share,
        "gpus": len(energy.joules),
        **_each(total, energy.window_s, row),
        "per_gpu": [
            {"index": index, **_each(joules, energy.window_s, row)}
            for index, joules in sorted(energy.joules.items())
        ],
    }


def _each(joules: float | None, window_s: float, row: Row) -> dict[str, float | None]:
    watts = joules / window_s if joules is not None and window_s else None
    rates = {"output_token": row.output_tok_s, "total_token": row.total_tok_s, "query": row.request_s}
    return {
        "joules": joules,
        "watts": watts,
        **{
            f"joules_per_{name}": watts / rate if watts is not None and rate else None
            for name, rate in rates.items()
        },
    }


def _around(samples: Sequence[PowerSample], start: float, end: float) -> list[PowerSample]:
    """The readings inside the window, and the nearest one on either side."""
    before = [s for s in samples if s.ts <= start][-1:]
    after = [s for s in samples if s.ts >= end][:1]
    return [*before, *(s for s in samples if start < s.ts < end), *after]


def _own(
    around: Sequence[PowerSample], visible: Sequence[int], gpus: int | None
) -> tuple[list[int], list[str]]:
    """The GPUs that serve: those with a process of the run, or all visible ones when that is how many it has."""
    held = sorted({gpu.index for sample in around for gpu in sample.gpus if gpu.own})
    own = held or (sorted(visible) if gpus == len(visible) else [])
    if not own:
        return [], [f"which of the {len(visible)} visible GPUs serve is not known"]
    if gpus is not None and len(own) < gpus:
        return own, [f"{len(own)} of the server's {gpus} GPUs were read on this host"]
    return own, []


def _others(around: Sequence[PowerSample], own: Sequence[int]) -> Iterator[str]:
    """Loads on the server's GPUs that are not the server's."""
    for index in own:
        seen = [gpu for sample in around for gpu in sample.gpus if gpu.index == index]
        if any(gpu.foreign for gpu in seen):
            yield f"GPU {index} carried another process's load too"
        elif any(gpu.unseen for gpu in seen):
            yield f"GPU {index} carries a process that this host does not show: whose load it is, is not known"
        elif any(gpu.foreign is None for gpu in seen):
            yield f"GPU {index} does not tell its processes: another's load cannot be ruled out"


def _measured(
    around: Sequence[PowerSample], own: Sequence[int], edges: tuple[float, float], reasons: list[str]
) -> Energy:
    window_s = edges[1] - edges[0]
    counters = {index: _points(around, index, "energy_mj", 1e-3) for index in own}
    powers = {index: _points(around, index, "power_mw", 1e-3) for index in own}
    complete = len(around)
    counted = all(len(points) == complete for points in counters.values())
    powered = all(len(points) == complete for points in powers.values())
    if not own or not (counted or powered):
        lacking = [i for i in own if len(counters[i]) < complete and len(powers[i]) < complete]
        text = f"GPU {', '.join(map(str, lacking))}: no energy counter and no power in some reading"
        return Energy(window_s, reasons=(*reasons, *([text] if lacking else [])))
    integrated = {index: integral(powers[index], *edges) for index in own} if powered else {}
    if not counted:
        update = POWER_UPDATE_S
        joules = integrated
    else:
        reasons += [f"GPU {index}: the energy counter was reset" for index in own if _falls(counters[index])]
        update = max(_update_s(counters[index]) for index in own)
        joules = {index: at(counters[index], edges[1]) - at(counters[index], edges[0]) for index in own}
        reasons += list(_disagree(joules, integrated))
    if update > EDGE_SHARE * window_s:
        what = "counter" if counted else "power reading"
        reasons.append(
            f"the window of {window_s:.1f} s is short for a {what} that moves every {update:.1f} s"
        )
    return Energy(window_s, "counter" if counted else "power", joules, update, tuple(reasons))


def _points(around: Sequence[PowerSample], index: int, name: str, factor: float) -> Points:
    return [
        (sample.ts, factor * value)
        for sample in around
        for gpu in sample.gpus
        if gpu.index == index and (value := getattr(gpu, name)) is not None
    ]


def _falls(points: Points) -> bool:
    return any(b[1] < a[1] for a, b in itertools.pairwise(points))


def _update_s(points: Points) -> float:
    """Longest time for which the counter stood still; the whole span when it never moved."""
    moves = [points[0][0], *(b[0] for a, b in itertools.pairwise(points) if b[1] != a[1]), points[-1][0]]
    return max(b - a for a, b in itertools.pairwise(moves))


def _disagree(joules: dict[int, float], integrated: dict[int, float]) -> Iterator[str]:
    for index, other in integrated.items():
        if abs(joules[index] - other) > AGREEMENT * max(abs(joules[index]), abs(other)):
            yield f"GPU {index}: its counter says {joules[index]:.0f} J, its power {other:.0f} J"


def at(points: Points, ts: float) -> float:
    """The value at ``ts``, linear between the two points around it; the nearest end outside."""
    if ts <= points[0][0]:
        return points[0][1]
    for (t0, v0), (t1, v1) in itertools.pairwise(points):
        if ts <= t1:
            return v0 + (v1 - v0) * (ts - t0) / (t1 - t0)
    return points[-1][1]


def integral(points: Points, start: float, end: float) -> float:
    """∫ value dt over ``start..end`` by trapezoids, the ends interpolated."""
    inner = [(ts, value) for ts, value in points if start < ts < end]
    path = [(start, at(points, start)), *inner, (end, at(points, end))]
    return sum((t1 - t0) * (v0 + v1) / 2 for (t0, v0), (t1, v1) in itertools.pairwise(path))
