"""Log: start-up stages, incidents, and what the monitor itself noticed."""

from __future__ import annotations

import time

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content

from k3ctl.telemetry.events import StageChanged
from k3ctl.telemetry.snapshot import LABEL
from k3ctl.telemetry.view import Alert, View
from k3ctl.tui.screens.base import MonitorScreen
from k3ctl.tui.widgets.bars import bar, fit
from k3ctl.tui.widgets.frame import SEVERITY_STYLE
from k3ctl.tui.widgets.panel import Panel

STAGE_MARK = {"running": "▶", "done": "✓", "failed": "✗"}
SHOWN_LINES = 200


class LogScreen(MonitorScreen):
    """What happened, newest last."""

    MODE = "log"

    def body(self) -> ComposeResult:
        """Stages and alerts above, the log below."""
        with Horizontal(id="log-top"):
            yield Panel("start-up stages", id="stages")
            yield Panel("alerts and what to do", id="actions")
        with VerticalScroll(id="log-scroll"):
            yield Panel("log", id="log-lines")

    def show_body(self, view: View) -> None:
        """Redraw."""
        stages = self.query_one("#stages", Panel)
        stages.show(*_stage_lines(view, stages.inner_width))
        actions = self.query_one("#actions", Panel)
        actions.show(*_action_lines(view, actions.inner_width))
        log = self.query_one("#log-lines", Panel)
        lines = [
            Content.assemble(
                (time.strftime("%H:%M:%S ", time.localtime(line.t)), "$secondary"),
                (f"{LABEL.get(line.level, line.level)} ", SEVERITY_STYLE.get(line.level, "")),
                line.text,
            )
            for line in view.log[-SHOWN_LINES:]
        ]
        log.show(*(lines or [Content.styled("nothing yet", "$secondary")]))
        self.query_one("#log-scroll", VerticalScroll).scroll_end(animate=False)


def _stage_lines(view: View, width: int) -> list[Content | str]:
    if not view.stages:
        why = view.failures.get("run", "no run of `k3ctl serve` is being followed")
        return [Content.styled(why, "$secondary")]
    return [_stage_line(stage, width) for stage in view.stages]


def _stage_line(stage: StageChanged, width: int) -> Content:
    mark = STAGE_MARK.get(stage.state, "·")
    head = f"{mark} {stage.stage:<10} "
    if stage.state == "running" and stage.total:
        share = stage.done / stage.total
        return Content.assemble(
            (head, "bold"), bar(share, max(6, width - 28)), f" {stage.done}/{stage.total}"
        )
    style = {"failed": "bold $text-error", "running": "bold $primary"}.get(stage.state, "")
    return Content.assemble((head, style), (fit(stage.detail, max(4, width - len(head))), "$secondary"))


def _action_lines(view: View, width: int) -> list[Content | str]:
    known = {alert.rule for alert in view.alerts}
    incidents = [
        Alert(found.rule, found.severity, "in the log", found.title, found.action, found.source)
        for found in view.incidents
        if found.rule not in known
    ]
    if not view.alerts and not incidents:
        return [Content.styled("✓ no alerts", "$secondary")]
    lines: list[Content | str] = []
    for alert in (*view.alerts, *incidents):
        head = f"{LABEL[alert.severity]} {alert.rule}"
        where = f" {alert.where}" if alert.where else ""
        lines.append(
            Content.assemble(
                (head, SEVERITY_STYLE[alert.severity]), (fit(where, width - len(head)), "$secondary")
            )
        )
        lines.append(f"  {alert.title}: {alert.detail}")
        lines.append(Content.assemble("  → ", (alert.action, "bold")))
    return lines
