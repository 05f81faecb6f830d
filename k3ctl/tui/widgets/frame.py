"""What every screen has: heading, tabs, alerts, replay position."""

from __future__ import annotations

import textwrap
import time

from textual.content import Content

from k3ctl.telemetry.replay import Player
from k3ctl.telemetry.snapshot import LABEL
from k3ctl.telemetry.text import duration
from k3ctl.telemetry.view import Alert, ServerView, View
from k3ctl.tui.widgets.bars import bar, rows
from k3ctl.tui.widgets.line import Line

TABS = (
    ("overview", "Overview"),
    ("path", "Path"),
    ("speculation", "Speculation"),
    ("gpus", "GPUs"),
    ("bench", "Bench"),
    ("log", "Log"),
)
"""Mode name and title, in the order of the number keys."""

SYMBOL = {"up": "●", "late": "◐", "waiting": "○", "down": "✗"}
STATE_STYLE = {
    "up": "$text-success",
    "late": "$text-warning",
    "waiting": "$secondary",
    "down": "$text-error",
}
SEVERITY_STYLE = {"fail": "bold $text-error", "warn": "bold $text-warning", "info": "bold $text-primary"}


class Heading(Line):
    """Model, server and its state, the clock."""

    def show(self, view: View) -> None:
        """Redraw."""
        clock = time.strftime("%H:%M:%S", time.localtime(view.now))
        narrow = self.size.width < 100
        left = Content.assemble(
            ("k3ctl" if narrow else "k3ctl monitor", "bold $primary"), "  ", *_servers(view)
        )
        gap = max(1, self.size.width - 2 - left.cell_length - len(clock))
        self.put(Content.assemble(left, " " * gap, (clock, "$secondary")))


def _servers(view: View) -> list[Content | str | tuple[str, str]]:
    if not view.servers:
        return [("no server named", "$secondary")]
    if len(view.servers) == 1:
        server = view.servers[0]
        model = f"{server.model}  " if server.model and server.state == "up" else ""
        return [model, server.source, "  ", _state(server)]
    parts: list[Content | str | tuple[str, str]] = [f"{len(view.servers)} servers  "]
    for state in ("up", "late", "waiting", "down"):
        if count := sum(server.state == state for server in view.servers):
            parts.append((f"{SYMBOL[state]} {count} {state}  ", STATE_STYLE[state]))
    return parts


def _state(server: ServerView) -> tuple[str, str]:
    detail = {
        "down": f" {duration(server.down_s)}: {server.failure}",
        "waiting": f" for an answer: {server.failure}" if server.failure else " for the first answer",
        "late": f", last read {duration(server.age_s)} ago",
    }.get(server.state, "")
    return f"{SYMBOL[server.state]} {server.state}{detail}", STATE_STYLE[server.state]


class TabStrip(Line):
    """The six screens; the present one is in reverse."""

    def show(self, mode: str) -> None:
        """Redraw."""
        narrow = self.size.width < 64
        parts: list[Content | str | tuple[str, str]] = []
        for number, (name, title) in enumerate(TABS, start=1):
            here = name == mode
            label = f" {number} {title} " if not narrow else f" {number} {title[:6]} "
            style = "reverse bold" if here else "$secondary"
            parts += [(label, f"{style} @click=app.show('{name}')"), " "]
        self.put(Content.assemble(*parts))


class AlertBar(Line):
    """The worst alerts in full sentences, over three lines, or one on small screens."""

    def show(self, view: View) -> None:
        """Redraw; without alerts the bar says so in one line."""
        if not view.alerts:
            self.put(Content.styled("✓ no alerts", "$secondary"))
            return
        room = 3 if self.app.size.height >= 32 else 1
        width = max(20, self.size.width - 2)
        shown = view.alerts[:room]
        lines = [line for alert in shown for line in _alert(alert, view, width, room // len(shown))]
        if (more := len(view.alerts) - room) > 0:
            tail = f"  (+{more} more: press a)"
            lines[-1] = Content.assemble(lines[-1][: max(0, width - len(tail))], (tail, "$secondary"))
        self.put(rows(*lines))


def _alert(alert: Alert, view: View, width: int, room: int) -> list[Content]:
    """An alert in at most ``room`` lines; where it is, unless there is only one server."""
    only_server = len(view.servers) == 1 and alert.where == view.servers[0].source
    where = f" [{alert.where}]" if alert.where and not only_server else ""
    head = f"{LABEL[alert.severity]} {alert.rule}" if width >= 90 else LABEL[alert.severity]
    text = f"{head}  {alert.title}{where}: {alert.detail} → {alert.action}"
    first, *rest = textwrap.wrap(text, width, max_lines=room, placeholder=" …", break_long_words=True)
    style = SEVERITY_STYLE[alert.severity]
    return [Content.assemble((first[: len(head)], style), first[len(head) :]), *map(Content, rest)]


class ReplayBar(Line):
    """Position and speed of a replay; hidden when the screen is live."""

    def show(self, player: Player | None) -> None:
        """Redraw."""
        self.display = player is not None
        if player is None:
            return
        state = "‖ paused" if player.paused else "■ end" if player.finished else "▶ replay"
        text = f" {duration(player.position_s)} / {duration(player.length_s)}  {player.speed:g}× "
        hint = "  space ←/→ 10 s +/- speed" if self.size.width >= 100 else ""
        width = max(5, self.size.width - len(state) - len(text) - len(hint) - 3)
        share = player.position_s / player.length_s if player.length_s else 1.0
        self.put(Content.assemble((state, "bold"), text, bar(share, width), (hint, "$secondary")))
