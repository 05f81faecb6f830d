"""One quantity over time, as an area of block characters with an eighth of a cell resolution.

Drawn here and not by a plotting library because of the redraw budget of the live screen: a library plot of
this size took 10 ms of CPU as a line and 40 ms as an area, two of them more than a whole tick may cost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from k3ctl.telemetry.text import duration

Samples = Sequence[tuple[float, float | None]]
"""Points of (Unix seconds, value) in order of time; None is a gap."""

CARRY_S = 10.0
"""How long a value stands when no newer point comes."""

LABEL_WIDTH = 6
"""Cells of the value labels and the axis: ``22.5k`` and a line."""

_BLOCKS = " ▁▂▃▄▅▆▇█"
_RUNS = re.compile(r"f+|e+| +")
_FILL, _EDGE, _AXIS = "chart--fill", "chart--edge", "chart--axis"


class TimeChart(Widget):
    """The last ``span_s`` seconds, from zero to ``top`` (or to a round number above the highest value)."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {_FILL, _EDGE, _AXIS}

    def __init__(self, title: str, id: str, *, span_s: float = 300.0, top: float | None = None) -> None:
        super().__init__(id=id, classes="panel chart")
        self.border_title = title
        self._span_s = span_s
        self._top = top
        self._ceiling = 1.0
        self._columns: list[float | None] = []
        self._rows: list[tuple[str, str]] = []

    def show(self, samples: Samples, now: float) -> None:
        """Redraw if any column changed."""
        recent = [point for point in samples if point[0] >= now - self._span_s]
        height = self.size.height - 2
        columns = resample(recent, now, self._span_s, max(1, self.size.width - LABEL_WIDTH))
        ceiling = self._top or nice_ceiling(
            max((value for value in columns if value is not None), default=0.0)
        )
        if (columns, ceiling, height) != (self._columns, self._ceiling, len(self._rows)):
            self._columns, self._ceiling = columns, ceiling
            self._rows = area(columns, ceiling, height)
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """One row: the plot area, then the axis and its labels."""
        height = self.size.height - 2
        axis = self.get_component_rich_style(_AXIS)
        if height < 1 or height != len(self._rows):
            return Strip.blank(self.size.width, self.rich_style)
        if y < height:
            label = _value_label(y, height, self._ceiling)
            head = Segment(f"{label:>{LABEL_WIDTH - 1}}{'┤' if label else '│'}", axis)
            return Strip([head, *self._plot(*self._rows[y])])
        if y == height:
            return Strip([Segment(" " * (LABEL_WIDTH - 1) + "└" + "─" * len(self._columns), axis)])
        return Strip([Segment(" " * LABEL_WIDTH + _time_labels(self._span_s, len(self._columns)), axis)])

    def _plot(self, cells: str, kinds: str) -> list[Segment]:
        """Segments of a row; full cells carry their colour as background too, so that rows join."""
        fill = self.get_component_rich_style(_FILL)
        fill += Style(bgcolor=fill.color)
        styles = {"f": fill, "e": self.get_component_rich_style(_EDGE), " ": self.rich_style}
        return [Segment(cells[run.start() : run.end()], styles[run[0][0]]) for run in _RUNS.finditer(kinds)]


def area(columns: Sequence[float | None], ceiling: float, height: int) -> list[tuple[str, str]]:
    """Rows from the top: their cells, and per cell ``f`` (below the edge), ``e`` (the edge) or a space."""
    if height < 1:
        return []
    cells, kinds = [], []
    for value in columns:
        if value is None:
            cells.append(" " * height)
            kinds.append(" " * height)
            continue
        eighths = max(1, round(min(1.0, value / ceiling) * height * 8))
        full, part = divmod(eighths, 8)
        cells.append(("█" * full + (_BLOCKS[part] if part else "")).ljust(height))
        kinds.append(("f" * (full - (not part)) + "e").ljust(height))
    rows = zip(zip(*cells, strict=True), zip(*kinds, strict=True), strict=True)
    return [("".join(row), "".join(kind)) for row, kind in rows][::-1]


def resample(points: Samples, now: float, span_s: float, width: int) -> list[float | None]:
    """A value per column: the mean of its points, else the value before it for up to CARRY_S, else None."""
    sums = [0.0] * width
    counts = [0] * width
    gaps = [False] * width
    for t, value in points:
        column = min(width - 1, max(0, int((t - (now - span_s)) / span_s * width)))
        if value is None:
            gaps[column] = True
        else:
            sums[column] += value
            counts[column] += 1
    columns: list[float | None] = []
    carried: float | None = None
    for column in range(width):
        if counts[column]:
            carried, age = sums[column] / counts[column], 0.0
        elif gaps[column]:
            carried = None
        else:
            age = age + span_s / width if carried is not None else 0.0
            carried = carried if age <= CARRY_S else None
        columns.append(carried)
    return columns


def nice_ceiling(value: float) -> float:
    """The smallest of 1, 2, 3, 4, 6, 8 × 10ⁿ that is at least ``value``; 1 for nothing."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 3, 4, 6, 8, 10) if step * power >= value * 0.999)


def _value_label(y: int, height: int, ceiling: float) -> str:
    """The label of row ``y``: ceiling at the top, and quarters or the half where there is room."""
    parts = 4 if height >= 12 else 2 if height >= 6 else 1
    for part in range(parts):
        if y == round(part * height / parts):
            return _short(ceiling * (parts - part) / parts)
    return ""


def _time_labels(span_s: float, width: int) -> str:
    count = 5 if width >= 50 else 3
    cells = [" "] * width
    for i in range(count):
        t = span_s * (count - 1 - i) / (count - 1)
        label = f"-{duration(t)}" if t else "now"
        at = min(width - len(label), max(0, round(width * i / (count - 1)) - len(label) // 2))
        cells[at : at + len(label)] = label
    return "".join(cells)


def _short(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.3g}k" if value < 1e6 else f"{value / 1e6:,.3g}M"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.3g}"
