"""The monitor without a screen: one snapshot, or a line per interval. Knows no terminal toolkit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Self

from k3ctl.deployment import Deployment
from k3ctl.feeds.sources import Feed
from k3ctl.telemetry import rules
from k3ctl.telemetry.events import Event
from k3ctl.telemetry.reducer import State, reduce, reduce_all
from k3ctl.telemetry.replay import Player
from k3ctl.telemetry.snapshot import line
from k3ctl.telemetry.view import View, build


def look_once(feeds: Sequence[Feed], interval_s: float, deployment: Deployment) -> View:
    """Read every feed twice, ``interval_s`` apart, so that there are rates; slow feeds are read side by side."""
    state = State()
    with ThreadPoolExecutor(max_workers=max(1, len(feeds))) as pool:
        for reading in range(2):
            if reading:
                time.sleep(interval_s)
            for events in pool.map(lambda feed: feed.read(), feeds):
                state = reduce_all(events, state)
    for feed in feeds:
        feed.close()
    return rules.judge(build(state, time.time(), deployment))


def stream(
    feeds: Sequence[Feed], interval_s: float, deployment: Deployment, emit: Callable[[str], None]
) -> None:
    """Emit a line per interval until interrupted."""
    with Reading(feeds) as reading:
        while True:
            time.sleep(interval_s)
            emit(line(rules.judge(build(reading.state(), time.time(), deployment))))


class Reading:
    """Feeds that are read in threads of their own, as long as the context lasts."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._queue: SimpleQueue[Sequence[Event]] = SimpleQueue()
        self._stop = threading.Event()
        self._state = State()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=_follow, args=(feed, self._queue, self._stop), daemon=True)
            for feed in feeds
        ]

    def state(self) -> State:
        """Everything that has come so far; may be asked from any thread."""
        with self._lock:
            self._state = _drain(self._queue, self._state)
            return self._state

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=3.0)


def play(player: Player, interval_s: float, deployment: Deployment, emit: Callable[[str], None]) -> None:
    """Emit a line per interval of recording time, at the player's speed, up to the end."""
    while not player.finished:
        time.sleep(interval_s / player.speed)
        player.seek(interval_s)
        emit(line(rules.judge(build(player.state, player.at, deployment))))


def _follow(feed: Feed, queue: SimpleQueue[Sequence[Event]], stop: threading.Event) -> None:
    while not stop.is_set():
        queue.put(feed.read())
        stop.wait(feed.interval_s)
    feed.close()


def _drain(queue: SimpleQueue[Sequence[Event]], state: State) -> State:
    while True:
        try:
            events = queue.get_nowait()
        except Empty:
            return state
        for event in events:
            state = reduce(state, event)
