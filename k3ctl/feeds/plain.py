"""The monitor without a screen: one snapshot, or a line per interval. Knows no terminal toolkit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

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
    queue: SimpleQueue[Sequence[Event]] = SimpleQueue()
    stop = threading.Event()
    threads = [threading.Thread(target=_follow, args=(feed, queue, stop), daemon=True) for feed in feeds]
    for thread in threads:
        thread.start()
    state = State()
    try:
        while True:
            time.sleep(interval_s)
            state = _drain(queue, state)
            emit(line(rules.judge(build(state, time.time(), deployment))))
    finally:
        stop.set()
        for thread in threads:
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
