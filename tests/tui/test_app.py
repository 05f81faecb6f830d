"""Keys, feeds, replay: the screen stays alive whatever a feed does, and needs neither mouse nor colour."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from k3ctl.telemetry.events import Event, FeedFailed, MetricsRead
from k3ctl.telemetry.recording import Recording
from k3ctl.telemetry.reducer import reduce_all
from k3ctl.telemetry.replay import Player
from k3ctl.tui.app import MonitorApp
from k3ctl.tui.screens.help import HelpScreen
from k3ctl.tui.theme import THEMES
from k3ctl.tui.widgets.frame import TABS
from tests.telemetry.feeding import URL, page, read
from tests.tui.scenarios import DEPLOYMENT, END, healthy
from tests.tui.test_screens import texts_of

HEALTHY = reduce_all(healthy())


def still() -> MonitorApp:
    return MonitorApp(state=HEALTHY, deployment=DEPLOYMENT, clock=lambda: END)


async def test_every_screen_is_reached_by_its_number_and_by_tab() -> None:
    app = still()
    async with app.run_test(size=(120, 36)) as pilot:
        for number, (name, _) in enumerate(TABS, 1):
            await pilot.press(str(number))
            assert app.current_mode == name
        await pilot.press("tab")
        assert app.current_mode == "overview"
        await pilot.press("shift+tab")
        assert app.current_mode == "log"
        await pilot.press("1", "a")
        assert app.current_mode == "log"


async def test_help_opens_and_closes_and_the_screen_below_stays() -> None:
    app = still()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("3", "question_mark")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("escape")
        assert app.current_mode == "speculation"


async def test_themes_take_turns() -> None:
    app = still()
    async with app.run_test() as pilot:
        seen = []
        for _ in THEMES:
            seen.append(app.theme)
            await pilot.press("t")
        assert seen == [theme.name for theme in THEMES]
        assert app.theme == THEMES[0].name


@pytest.mark.parametrize("theme", ["textual-light", "ansi-dark", "nord", "k3-contrast"])
async def test_any_theme_draws(theme: str) -> None:
    app = still()
    async with app.run_test(size=(100, 30)) as pilot:
        app.theme = theme
        for name, _ in TABS:
            await app.action_show(name)
            await pilot.pause()


async def test_without_colour_the_screen_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = await texts_of(still(), ["overview"])
    monkeypatch.setenv("NO_COLOR", "1")
    app = still()
    assert app.no_color
    assert await texts_of(app, ["overview"]) == coloured


async def test_a_resize_lays_the_screen_out_again() -> None:
    app = still()
    async with app.run_test(size=(160, 50)) as pilot:
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert app.screen.has_class("-narrow")
        assert app.screen.has_class("-short")


class Scripted:
    """A feed that hands out prepared answers, then nothing."""

    def __init__(self, *answers: Sequence[Event], hang: bool = False) -> None:
        self.interval_s = 0.01
        self.closed = threading.Event()
        self._answers = list(answers)
        self.release = threading.Event()
        if not hang:
            self.release.set()

    def read(self) -> Sequence[Event]:
        self.release.wait(60)
        return self._answers.pop(0) if self._answers else []

    def close(self) -> None:
        self.closed.set()


async def until(condition: object, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


async def test_events_of_a_feed_reach_the_view_and_its_thread_ends_with_the_app() -> None:
    now = time.time()
    feed = Scripted(
        [MetricsRead(now - 2, URL, page(generation_tokens_total=100, num_requests_running=1))],
        [MetricsRead(now - 1, URL, page(generation_tokens_total=600, num_requests_running=1))],
    )
    app = MonitorApp([feed])
    async with app.run_test():
        await until(lambda: app.view.load.output_tok_s is not None)
        assert app.view.load.output_tok_s == pytest.approx(500)
    assert feed.closed.wait(3)


async def test_a_hanging_feed_does_not_hold_up_keys_or_other_feeds() -> None:
    slow = Scripted(hang=True)
    quick = Scripted([FeedFailed(time.time(), URL, "metrics", "HTTP 503 Service Unavailable")])
    app = MonitorApp([slow, quick])
    async with app.run_test() as pilot:
        await until(lambda: app.view.servers)
        await pilot.press("6")
        assert app.current_mode == "log"
        assert app.view.servers[0].failure == "HTTP 503 Service Unavailable"
        assert not slow.release.is_set()
        slow.release.set()


def replaying(speed: float = 1.0) -> tuple[MonitorApp, Player, list[float]]:
    clock = [0.0]
    player = Player(Recording(tuple(healthy()), 0), speed)
    return MonitorApp(player=player, clock=lambda: clock[0], redraw_s=3600), player, clock


async def test_a_replay_is_seekable_with_keys() -> None:
    app, player, _ = replaying()
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("shift+right", "right", "right")
        assert player.position_s == 80
        await pilot.press("left")
        assert player.position_s == 70
        await pilot.press("end")
        assert player.finished
        await pilot.press("home")
        assert player.position_s == 0
        await pilot.press("plus", "plus", "minus")
        assert player.speed == 2


async def test_a_replay_runs_by_the_clock_and_pauses() -> None:
    app, player, clock = replaying(speed=10)
    async with app.run_test(size=(120, 36)) as pilot:
        clock[0] = 3.0
        app.tick()
        assert player.position_s == 30
        await pilot.press("space")
        clock[0] = 6.0
        app.tick()
        assert player.position_s == 30


async def test_a_replay_shows_its_position() -> None:
    app, player, _ = replaying(speed=10)
    player.seek(100)
    shown = await texts_of(app, ["overview"])
    assert "▶ replay 1:40 / 5:40  10×" in shown[0]


async def test_c_asks_the_servers_and_tells_what_the_canary_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def to(url: str) -> tuple[str, str]:
        asked.append(url)
        return "corrupt", "3 of 10 answers are no text"

    monkeypatch.setattr("k3ctl.canary.send.to", to)
    app = MonitorApp([], state=reduce_all([read(1.0, generation_tokens_total=5)]), clock=lambda: 2.0)
    async with app.run_test() as pilot:
        await pilot.press("c")
        await app.workers.wait_for_complete()
        await pilot.pause()
        told = " ".join(notification.message for notification in app._notifications)
    assert asked == [URL] and "3 of 10 answers are no text" in told


async def test_c_with_no_server_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k3ctl.canary.send.to", lambda url: pytest.fail(f"asked {url}"))
    app = MonitorApp([], clock=lambda: 2.0)
    async with app.run_test() as pilot:
        await pilot.press("c")
        await pilot.pause()
        assert any("no server" in notification.message for notification in app._notifications)
