"""Small pure plots: numbers in, one ``<svg>`` element out. No script, no font file, no colour that print loses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 34, 48
COLOURS = ("#0b62a4", "#c4520c", "#2f7d32", "#7a3e9d", "#8a6d00", "#b3204d", "#3b6e73")
MARKS = ("circle", "square", "diamond")
DASHES = ("", "7 3", "2 3", "9 3 2 3")
LEGEND = 84
_NO_DATA = '<text x="260" y="160" class="k">no data</text>'


@dataclass(frozen=True)
class Series:
    """One named line or cloud: ``points`` are (x, y); ``spread`` gives each y a ± in its own unit."""

    name: str
    points: Sequence[tuple[float, float]]
    spread: Sequence[float] = ()
    line: bool = True
    marks: bool = True


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        share = (at - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 2)


def chart(
    title: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    *,
    log_x: bool = False,
    x_at_points: bool = False,
) -> str:
    """A line or scatter chart; y starts at zero. Series without points are left out.

    ``x_at_points`` labels the x axis at the points themselves instead of at round values.
    """
    shown = [one for one in series if one.points]
    if not shown:
        return _frame(title, x_label, y_label, [_NO_DATA])
    xs = sorted({x for one in shown for x, _ in one.points})
    ys = [y for one in shown for _, y in one.points]
    tops = [y + s for one in shown for (_, y), s in zip(one.points, one.spread, strict=False)]
    right = WIDTH - (LEGEND if len(shown) > 1 else RIGHT)
    x_scale = _Scale(xs[0], xs[-1], LEFT + 12, right - 12, log_x and xs[0] > 0)
    y_scale = _Scale(0.0, max([*ys, *tops]) * 1.05 or 1.0, HEIGHT - BOTTOM, TOP)
    x_ticks = xs if x_at_points else ticks(x_scale.low, x_scale.high)
    body = [_x_tick(x, x_scale(x)) for x in x_ticks]
    body += [_y_tick(y, y_scale(y), right) for y in ticks(0.0, y_scale.high)]
    for index, one in enumerate(shown):
        body += _series(one, index, x_scale, y_scale)
    if len(shown) > 1:
        body += _legend(shown)
    return _frame(title, x_label, y_label, body, right)


def bars(title: str, x_label: str, y_label: str, names: Sequence[str], values: Sequence[float]) -> str:
    """One bar per name; y runs from 0 to at least 1."""
    if not values:
        return _frame(title, x_label, y_label, [_NO_DATA])
    y_scale = _Scale(0.0, max(1.0, *values), HEIGHT - BOTTOM, TOP)
    room = (WIDTH - LEFT - RIGHT) / len(values)
    body = [_y_tick(y, y_scale(y), WIDTH - RIGHT) for y in ticks(0.0, y_scale.high)]
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        x, top = LEFT + room * (index + 0.15), y_scale(value)
        height = round(HEIGHT - BOTTOM - top, 2)
        body.append(
            f'<rect x="{x:.2f}" y="{top}" width="{room * 0.7:.2f}" height="{height}" fill="{COLOURS[0]}"/>'
        )
        body.append(
            f'<text x="{x + room * 0.35:.2f}" y="{HEIGHT - BOTTOM + 16}" class="k">{escape(name)}</text>'
        )
    return _frame(title, x_label, y_label, body)


def ecdf(values: Sequence[float]) -> list[tuple[float, float]]:
    """The empirical distribution as a staircase: share of values at or below x; at most 200 stairs."""
    ordered = sorted(values)
    every = -(-len(ordered) // 200)
    chosen = [*range(0, len(ordered) - 1, every), len(ordered) - 1]
    out: list[tuple[float, float]] = []
    for index in chosen:
        below = out[-1][1] if out else 0.0
        out += [(ordered[index], below), (ordered[index], (index + 1) / len(ordered))]
    return out


def ticks(low: float, high: float) -> list[float]:
    """Round values between ``low`` and ``high``, four to nine of them."""
    if high <= low:
        return [low]
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 8)
    first = math.ceil(low / step)
    return [round(n * step, 10) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _series(one: Series, index: int, x: Callable[[float], float], y: Callable[[float], float]) -> list[str]:
    body = []
    colour = COLOURS[index % len(COLOURS)]
    places = [(x(a), y(b)) for a, b in one.points]
    if one.line and len(places) > 1:
        path = " ".join(f"{a},{b}" for a, b in places)
        body.append(f'<polyline points="{path}" fill="none" {_stroke(index)}/>')
    for (a, b), spread in zip(one.points, one.spread, strict=False):
        body.append(
            f'<path d="M{x(a)} {y(b - spread)}V{y(b + spread)}" stroke="{colour}" stroke-width="1.2"/>'
        )
    if one.marks:
        body += [_mark(MARKS[index % len(MARKS)], a, b, colour) for a, b in places]
    return body


def _stroke(index: int) -> str:
    dash = DASHES[index % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'stroke="{COLOURS[index % len(COLOURS)]}" stroke-width="1.8"{dashed}'


def _mark(kind: str, x: float, y: float, colour: str) -> str:
    if kind == "circle":
        return f'<circle cx="{x}" cy="{y}" r="3.4" fill="{colour}"/>'
    turn = f' transform="rotate(45 {x} {y})"' if kind == "diamond" else ""
    return f'<rect x="{x - 3:.2f}" y="{y - 3:.2f}" width="6" height="6" fill="{colour}"{turn}/>'


def _legend(shown: Sequence[Series]) -> list[str]:
    body = []
    left = WIDTH - LEGEND + 8
    for index, one in enumerate(shown):
        y = TOP + 8 + 16 * index
        if one.line:
            body.append(f'<path d="M{left} {y - 4}h22" {_stroke(index)}/>')
        if one.marks:
            body.append(_mark(MARKS[index % len(MARKS)], left + 11, y - 4, COLOURS[index % len(COLOURS)]))
        body.append(f'<text x="{left + 28}" y="{y}" class="l">{escape(one.name)}</text>')
    return body


def _x_tick(value: float, x: float) -> str:
    y = HEIGHT - BOTTOM
    return f'<path d="M{x} {y}v5" class="a"/><text x="{x}" y="{y + 18}" class="k">{value:g}</text>'


def _y_tick(value: float, y: float, right: float) -> str:
    return (
        f'<path d="M{LEFT} {y}H{right}" class="g"/>'
        f'<text x="{LEFT - 6}" y="{y + 4}" class="y">{value:g}</text>'
    )


def _frame(title: str, x_label: str, y_label: str, body: Sequence[str], right: float = WIDTH - RIGHT) -> str:
    middle = (TOP + HEIGHT - BOTTOM) / 2
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" xmlns="http://www.w3.org/2000/svg">'
        f'<text x="{LEFT}" y="18" class="t">{escape(title)}</text>'
        + "".join(body)
        + f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{right}" class="a" fill="none"/>'
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 10}" class="k">{escape(x_label)}</text>'
        f'<text x="16" y="{middle}" class="k" transform="rotate(-90 16 {middle})">{escape(y_label)}</text></svg>'
    )
