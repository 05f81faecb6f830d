"""The frame around each screen."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container
from textual.screen import Screen
from textual.widgets import Footer

from k3ctl.telemetry.replay import Player
from k3ctl.telemetry.view import View
from k3ctl.tui.messages import ScreenReady
from k3ctl.tui.widgets.frame import AlertBar, Heading, ReplayBar, TabStrip


class MonitorScreen(Screen[None]):
    """Heading, tabs and alerts above, replay position and keys below, a body between."""

    MODE = ""
    ready = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012 (textual's declaration)
    VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall")]  # noqa: RUF012

    def compose(self) -> ComposeResult:
        """Frame and body."""
        yield Heading(id="heading")
        yield TabStrip(id="tabs")
        yield AlertBar(id="alerts")
        with Container(id="body"):
            yield from self.body()
        yield ReplayBar(id="replay")
        yield Footer()

    def on_mount(self) -> None:
        """Widgets have children of their own: nothing can be shown before all of them are there."""
        self.call_after_refresh(self._become_ready)

    def _become_ready(self) -> None:
        self.ready = True
        self.post_message(ScreenReady())

    def body(self) -> ComposeResult:
        """The screen's own widgets."""
        yield from ()

    def show(self, view: View, player: Player | None) -> None:
        """Redraw what changed."""
        if not self.ready:
            return
        self.query_one(Heading).show(view)
        self.query_one(TabStrip).show(self.MODE)
        self.query_one(AlertBar).show(view)
        self.query_one(ReplayBar).show(player)
        self.show_body(view)

    def show_body(self, view: View) -> None:
        """Redraw the screen's own widgets."""
