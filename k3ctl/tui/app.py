"""The Textual application: feeds in, state, screens out. Two redraws a second, I/O in worker threads only."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Event as Flag
from typing import ClassVar, Literal

from textual import on
from textual.app import App
from textual.binding import Binding, BindingType
from textual.worker import get_current_worker

from k3ctl.deployment import Deployment
from k3ctl.feeds.sources import Feed
from k3ctl.output import printable
from k3ctl.telemetry import rules
from k3ctl.telemetry.events import Event
from k3ctl.telemetry.reducer import State, reduce_all
from k3ctl.telemetry.replay import Player
from k3ctl.telemetry.view import View, build
from k3ctl.tui.messages import EventsRead, ScreenReady
from k3ctl.tui.screens.base import MonitorScreen
from k3ctl.tui.screens.bench import BenchScreen
from k3ctl.tui.screens.gpus import GpusScreen
from k3ctl.tui.screens.help import HelpScreen
from k3ctl.tui.screens.log import LogScreen
from k3ctl.tui.screens.overview import OverviewScreen
from k3ctl.tui.screens.path import PathScreen
from k3ctl.tui.screens.speculation import SpeculationScreen
from k3ctl.tui.theme import THEMES
from k3ctl.tui.widgets.frame import TABS

REDRAW_S = 0.5


class MonitorApp(App[None]):
    """``feeds`` are read live; with ``player`` a recording is shown instead. ``clock`` gives Unix seconds."""

    TITLE = "k3ctl monitor"
    CSS_PATH = "monitor.tcss"
    MODES: ClassVar[dict[str, type[MonitorScreen]]] = {  # type: ignore[assignment]
        "overview": OverviewScreen,
        "path": PathScreen,
        "speculation": SpeculationScreen,
        "gpus": GpusScreen,
        "bench": BenchScreen,
        "log": LogScreen,
    }
    DEFAULT_MODE = "overview"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(i), f"show('{name}')", title, show=False) for i, (name, title) in enumerate(TABS, 1)),
        Binding("tab", "step(1)", "Next screen", key_display="tab/1-6", priority=True),
        Binding("shift+tab", "step(-1)", "Previous screen", show=False, priority=True),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("a", "show('log')", "Alerts"),
        Binding("c", "canary", "Canary", show=False),
        Binding("t", "theme", "Theme"),
        Binding("space", "pause", "Pause", show=False),
        Binding("left", "seek(-10)", "Back 10 s", show=False),
        Binding("right", "seek(10)", "Forward 10 s", show=False),
        Binding("shift+left", "seek(-60)", "Back 1 min", show=False),
        Binding("shift+right", "seek(60)", "Forward 1 min", show=False),
        Binding("home", "seek(-1e12)", "Start", show=False),
        Binding("end", "seek(1e12)", "End", show=False),
        Binding("plus,equals_sign", "speed(2.0)", "Faster", show=False),
        Binding("minus", "speed(0.5)", "Slower", show=False),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(
        self,
        feeds: Sequence[Feed] = (),
        *,
        player: Player | None = None,
        deployment: Deployment | None = None,
        state: State | None = None,
        clock: Callable[[], float] = time.time,
        redraw_s: float = REDRAW_S,
    ) -> None:
        super().__init__()
        self.player = player
        self._feeds = tuple(feeds)
        self._deployment = deployment or Deployment()
        self._state = state or State()
        self._clock = clock
        self._redraw_s = redraw_s
        self._last_tick = clock()
        self._stop = Flag()
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = THEMES[0].name

    def on_mount(self) -> None:
        """Start the feeds and the redraw timer."""
        for number, feed in enumerate(self._feeds):
            self.run_worker(
                partial(self._follow, feed), thread=True, group=f"feed-{number}", exit_on_error=False
            )
        self.set_interval(self._redraw_s, self.tick)

    def on_unmount(self) -> None:
        """Let the feed threads end."""
        self._stop.set()

    def _follow(self, feed: Feed) -> None:
        """A feed's thread: read, post, wait."""
        worker = get_current_worker()
        try:
            while not (worker.is_cancelled or self._stop.is_set()):
                if events := feed.read():
                    self.post_message(EventsRead(events))
                self._stop.wait(feed.interval_s)
        finally:
            feed.close()

    @on(EventsRead)
    def _take(self, message: EventsRead) -> None:
        self.apply(message.events)

    @on(ScreenReady)
    def _draw_first(self) -> None:
        self.redraw()

    def apply(self, events: Sequence[Event]) -> None:
        """Fold events into the state; the next redraw shows them."""
        self._state = reduce_all(events, self._state)

    def tick(self) -> None:
        """Let replay time pass, and redraw."""
        now = self._clock()
        if self.player is not None:
            self.player.advance(now - self._last_tick)
        self._last_tick = now
        self.redraw()

    @property
    def view(self) -> View:
        """What there is to show now."""
        if self.player is not None:
            return rules.judge(build(self.player.state, self.player.at, self._deployment))
        return rules.judge(build(self._state, self._clock(), self._deployment))

    def redraw(self) -> None:
        """Hand the present view to the visible screen, also when a dialog lies over it."""
        if not self.is_running:  # a last timer tick while the widgets are being taken down
            return
        view = self.view
        for screen in self.screen_stack:
            if isinstance(screen, MonitorScreen):
                screen.show(view, self.player)

    def on_resize(self) -> None:
        """Draw again for the new size."""
        self.call_after_refresh(self.redraw)

    async def action_show(self, mode: str) -> None:
        """Go to a screen."""
        if isinstance(self.screen, HelpScreen):
            self.pop_screen()
        await self.switch_mode(mode)
        self.redraw()

    async def action_step(self, by: int) -> None:
        """Go to the next or the previous screen."""
        names = [name for name, _ in TABS]
        await self.action_show(names[(names.index(self.current_mode) + by) % len(names)])

    def action_help(self) -> None:
        """Open the help."""
        self.push_screen(HelpScreen())

    def action_theme(self) -> None:
        """Take the next of our themes."""
        names = [theme.name for theme in THEMES]
        here = names.index(self.theme) if self.theme in names else -1
        self.theme = names[(here + 1) % len(names)]
        self.call_after_refresh(self.redraw)

    def action_canary(self) -> None:
        """Send the canary's ten prompts to every server that answers: the one thing here that asks the model."""
        urls = [server.source for server in self.view.servers if server.state == "up"]
        if self.player is not None or not urls:
            self.notify("no server to ask", title="canary", severity="warning")
            return
        self.notify(f"ten prompts to {', '.join(urls)}", title="canary")
        for url in urls:
            self.run_worker(partial(self._canary, url), thread=True, group="canary", exit_on_error=False)

    def _canary(self, url: str) -> None:
        """The canary's thread."""
        from k3ctl.canary import send

        verdict, statement = send.to(url)
        severity: Literal["information", "error"] = (
            "information" if verdict in {"healthy", "unknown"} else "error"
        )
        text = f"{url}: {verdict} — {statement}"
        tell = partial(
            self.notify, printable(text), title="canary", severity=severity, timeout=60, markup=False
        )
        self.call_from_thread(tell)

    def action_pause(self) -> None:
        """Stop or resume a replay."""
        if self.player is not None:
            self.player.paused = not self.player.paused
            self.redraw()

    def action_seek(self, seconds: float) -> None:
        """Jump in a replay."""
        if self.player is not None:
            self.player.seek(seconds)
            self.redraw()

    def action_speed(self, factor: float) -> None:
        """Change a replay's speed, between 1/8 and 512."""
        if self.player is not None:
            self.player.speed = min(512.0, max(0.125, self.player.speed * factor))
            self.redraw()
