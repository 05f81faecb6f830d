"""Path: which decode path runs, and what keeps steps off the specialized one."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content

from k3ctl.facts.k3 import SPECIALIZED_ROWS
from k3ctl.server.witness import REASONS, SPECIALIZED, by_reason, decode_steps, own_slots
from k3ctl.telemetry.text import UNKNOWN, count, number, percent
from k3ctl.telemetry.view import Load, PathView, View
from k3ctl.tui.screens.base import MonitorScreen
from k3ctl.tui.widgets.bars import bar, fit
from k3ctl.tui.widgets.chart import TimeChart
from k3ctl.tui.widgets.panel import Panel, Tile

GRAPH_MODES = ("full", "piecewise", "eager")


class PathScreen(MonitorScreen):
    """Decode steps by path, rows, graphs, step time."""

    MODE = "path"

    def body(self) -> ComposeResult:
        """Share and reasons, then rows, graphs and step time."""
        with Horizontal(id="path-top"):
            yield Tile("specialized", id="share")
            yield Panel("decode steps", id="reasons")
        with Horizontal(id="path-middle"):
            yield Panel("rows and graphs", id="rows")
            yield Panel("step time", id="step")
        with Horizontal(id="path-bottom"):
            yield TimeChart("share of decode steps specialized, %", id="share-plot", top=100)
            yield Panel("runtime", id="runtime")

    def show_body(self, view: View) -> None:
        """Redraw."""
        path = view.path
        share = UNKNOWN if path.engagement is None else f"{path.engagement * 100:.1f}"
        caption = [path.basis, f"{percent(path.engagement_total)} since start"]
        self.query_one("#share", Tile).show(share, "% of steps", *(caption if path.basis else ["no witness"]))
        reasons = self.query_one("#reasons", Panel)
        reasons.show(*_reason_lines(path, reasons.inner_width))
        rows = self.query_one("#rows", Panel)
        rows.show(*_row_lines(view.load, path, rows.inner_width))
        step = self.query_one("#step", Panel)
        step.show(*_step_lines(view, step.inner_width))
        history = [(p.t, None if p.engagement is None else p.engagement * 100) for p in view.history]
        self.query_one("#share-plot", TimeChart).show(history, view.now)
        runtime = self.query_one("#runtime", Panel)
        runtime.show(*_runtime_lines(path, runtime.inner_width))


def _reason_lines(path: PathView, width: int) -> list[Content | str]:
    if not path.basis:
        lines: list[Content | str] = [Content.styled(f"unknown: {path.absence}", "$text-warning"), ""]
        lines += [f"· {fact}" for fact in path.excluded]
        if not path.excluded:
            lines.append(
                "start it with `k3ctl serve`, or read `k3ctl verify`, which can also judge by step time"
            )
        return lines
    total = decode_steps(path.counts)
    if not total:
        return [Content.styled("no decode step counted yet", "$secondary")]
    name_width = 26 if width >= 60 else 23
    bar_width = max(8, width - name_width - 19)
    fast = sum(steps.steps for key, steps in path.counts.items() if key.ran == SPECIALIZED)
    lines = [_share_line("specialized", fast, total, name_width, bar_width, "$success")]
    lines += [f"  our kernels: {slots}" for slots in own_slots(path.counts)]
    for code, steps in by_reason(path.counts):
        lines.append(_share_line(REASONS.get(code, code), steps, total, name_width, bar_width, "$warning"))
    return lines


def _share_line(
    name: str, steps: float, total: float, name_width: int, bar_width: int, style: str
) -> Content:
    share = steps / total
    return Content.assemble(
        f"{fit(name, name_width - 1):<{name_width}}",
        bar(share, bar_width, style),
        f"{percent(share):>9}{count(steps):>10}",
    )


def _row_lines(load: Load, path: PathView, width: int) -> list[Content | str]:
    bar_width = max(8, width - 22)
    width_of_request = load.draft_tokens + 1
    rows_now = path.rows_now or 0.0
    over = rows_now - path.max_rows
    style = "$error" if over > 0 else "$primary"
    verdict = f"OVER by {over:.0f}: " if over > 0 else ""
    lines: list[Content | str] = [
        Content.assemble(
            ("now    ", "bold"),
            bar(rows_now / path.max_rows, bar_width, style),
            f" {count(rows_now)} of {path.max_rows} rows",
        ),
        f"       {verdict}{count(load.running)} running × {width_of_request} (K+1)",
        f"       room for {path.max_rows // width_of_request} requests",
    ]
    if path.rows_per_step is not None:
        mean = f"{number(path.rows_per_step)} rows a decode step, {path.basis}"
        lines.append(Content.assemble(("mean   ", "bold"), mean))
    modes: dict[str, float] = {}
    for key, steps in path.counts.items():
        modes[key.mode] = modes.get(key.mode, 0.0) + steps.steps
    if total := sum(modes.values()):
        shares = " · ".join(f"{mode} {percent(modes.get(mode, 0) / total)}" for mode in GRAPH_MODES)
        lines.append(Content.assemble(("graphs ", "bold"), shares))
    return lines


def _step_lines(view: View, width: int) -> list[Content | str]:
    path, anchor = view.path, view.path.anchor
    measured = UNKNOWN if path.step_ms is None else f"{path.step_ms:.2f} ms"
    basis = f" mean ITL, {view.load.itl.basis}" if view.load.itl else ""
    lines: list[Content | str] = [
        Content.assemble(("measured     ", "bold"), measured, (basis, "$secondary"))
    ]
    if anchor is None:
        named = view.deployment.profile or view.deployment.gpu
        why = "none published for this batch" if named else "name the profile with --profile"
        return [*lines, Content.styled(f"anchor       {why}", "$secondary")]
    scale = max(anchor.standard_ms * 1.25, path.step_ms or 0.0)
    bar_width = max(8, width - 25)
    for name, value in (("specialized", anchor.specialized_ms), ("standard", anchor.standard_ms)):
        line = bar(
            value / scale, bar_width, "$secondary", mark=path.step_ms / scale if path.step_ms else None
        )
        lines.append(Content.assemble((f"{name:<13}", "bold"), line, f" {value:.2f} ms"))
    conditions = (
        f"{anchor.gpu.upper()} TP{anchor.tensor_parallel}, K={anchor.draft_tokens}, batch {anchor.batch}"
    )
    lines.append(Content.styled(fit(f"┃ measured · {conditions}; {anchor.source}", width), "$secondary"))
    return lines


def _runtime_lines(path: PathView, width: int) -> list[Content | str]:
    if not path.basis:
        return [Content.styled("no witness", "$secondary")]
    known = {True: "known to the witness", False: "NOT known to the witness", None: UNKNOWN}[path.known_build]
    backend = path.backend or UNKNOWN
    rows = [
        ("backend", backend),
        ("build", known),
        ("versions", path.versions),
        ("platform", path.platform),
        ("ranks", f"{path.ranks}" + (", counts DISAGREE" if path.ranks_disagree else "")),
        (
            "row limit",
            f"{path.max_rows}"
            + ("" if path.max_rows == SPECIALIZED_ROWS else f" (vLLM's is {SPECIALIZED_ROWS})"),
        ),
    ]
    lines: list[Content | str] = [
        Content.assemble((f"{name:<10}", "bold"), fit(value, width - 10)) for name, value in rows
    ]
    lines += [Content.styled(fit(f"refused: {reason}", width), "$text-error") for reason in path.refused]
    lines += [Content.styled(fit(fact, width), "$text-warning") for fact in path.excluded]
    return lines
