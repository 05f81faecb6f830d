"""Bench: the rows of a running benchmark filling in."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content

from k3ctl.telemetry.bench import BenchRow, BenchState
from k3ctl.telemetry.text import UNKNOWN, count, number, percent, seconds
from k3ctl.telemetry.view import View
from k3ctl.tui.screens.base import MonitorScreen
from k3ctl.tui.widgets.bars import bar
from k3ctl.tui.widgets.chart import TimeChart
from k3ctl.tui.widgets.line import Line
from k3ctl.tui.widgets.panel import Panel
from k3ctl.tui.widgets.table import Table


class BenchScreen(MonitorScreen):
    """Client figures beside what the server does meanwhile."""

    MODE = "bench"

    def body(self) -> ComposeResult:
        """The table, and the server's side."""
        yield Line(id="bench-note")
        yield Table("client", id="bench-table")
        with Horizontal(id="bench-bottom"):
            yield TimeChart("server output tok/s", id="bench-plot")
            yield Panel("server during the run", id="bench-server")

    def show_body(self, view: View) -> None:
        """Redraw."""
        self.query_one("#bench-note", Line).put(_note(view))
        rows = _rows(view.bench) if view.bench else []
        columns = [column for column in COLUMNS if self.size.width >= column[1]]
        cells = {f"{i}": [cell(row) for _, _, cell in columns] for i, row in enumerate(rows)}
        table = self.query_one("#bench-table", Table)
        table.display = bool(rows)
        table.show([title for title, _, _ in columns], cells, LEFT)
        self.query_one("#bench-plot", TimeChart).show([(p.t, p.output_tok_s) for p in view.history], view.now)
        self.query_one("#bench-server", Panel).show(*_server_lines(view))


def _rows(bench: BenchState) -> list[BenchRow]:
    """The rows so far, and one for each step that the run announced and has not begun."""
    missing = max(0, bench.expected - len(bench.rows)) if bench.state == "running" else 0
    return [*bench.rows, *[BenchRow("to come")] * missing]


def _progress(row: BenchRow) -> str:
    done = 1.0 if row.done else 1.0 - row.remaining if row.remaining is not None else 0.0
    return f"{bar(done, 8).plain} {done:4.0%}"


def _reference(row: BenchRow) -> str:
    if row.reference is None:
        return UNKNOWN
    low, high = row.reference
    return number(low) if low == high else f"{number(low)}–{number(high)}"


COLUMNS: tuple[tuple[str, int, Callable[[BenchRow], str]], ...] = (
    ("step", 0, lambda row: row.strategy),
    ("phase", 100, lambda row: row.phase),
    ("progress", 0, _progress),
    ("ok", 0, lambda row: count(row.completed)),
    ("errors", 0, lambda row: count(row.errored)),
    ("out tok/s", 0, lambda row: number(row.output_tok_s)),
    ("reference", 0, _reference),
    ("TTFT", 90, lambda row: _ms(row.ttft_ms)),
    ("ITL", 90, lambda row: _ms(row.itl_ms)),
    ("tok/s/user", 100, lambda row: number(1000 / row.itl_ms if row.itl_ms else None)),
    ("latency", 110, lambda row: seconds(row.request_latency_s)),
)
"""Title, least screen width, cell."""

LEFT = ("step", "phase", "progress")


def _ms(value: float | None) -> str:
    return seconds(None if value is None else value / 1e3)


def _note(view: View) -> Content:
    bench: BenchState | None = view.bench
    if bench is None:
        why = view.failures.get("bench", "no benchmark is being followed")
        return Content.assemble(
            why, (": `k3ctl bench … --tui`, or `k3ctl monitor --bench FILE`", "$secondary")
        )
    rows = f"{sum(row.done for row in bench.rows)} of {bench.expected or len(bench.rows)} steps done"
    labels = sorted({row.reference_label for row in bench.rows if row.reference_label})
    against = (
        f" · reference: {', '.join(labels)}" if labels else " · no published reference for these conditions"
    )
    note = f" · {bench.note}" if bench.note else ""
    style = {"failed": "bold $text-error", "done": "bold $text-success"}.get(bench.state, "bold $primary")
    return Content.assemble((bench.state, style), f" · {rows}{against}{note}")


def _server_lines(view: View) -> list[Content | str]:
    load = view.load
    acceptance = f"{load.acceptance.length:.2f}" if load.acceptance else UNKNOWN
    rows = [
        ("output", f"{number(load.output_tok_s)} tok/s"),
        ("running", f"{count(load.running)}, waiting {count(load.waiting)}"),
        ("acceptance", acceptance),
        (
            "specialized",
            f"{percent(view.path.engagement)} of decode steps" if view.path.basis else view.path.absence,
        ),
        ("prefix hits", percent(load.prefix_hit_share)),
        ("alerts", ", ".join(alert.rule for alert in view.alerts) or "none"),
    ]
    return [Content.assemble((f"{name:<12}", "bold"), value) for name, value in rows]
