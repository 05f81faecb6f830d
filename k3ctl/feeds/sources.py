"""Where events come from. A feed is read once per interval and never raises for what its source does.

Feeds do the I/O of the live screen; they run in worker threads and know nothing of widgets.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from k3ctl import files
from k3ctl.server.client import SCREEN_S, Client, HttpError
from k3ctl.server.prometheus import PageError, parse
from k3ctl.server.witness import ROUTE, workers_of_table
from k3ctl.signals import PREFIX
from k3ctl.telemetry.engines import WANTED
from k3ctl.telemetry.events import BenchReported, Event, FeedFailed, MetricsRead, WitnessRead
from k3ctl.telemetry.recording import Recorder


class Feed(Protocol):
    """One source of events."""

    interval_s: float

    def read(self) -> Sequence[Event]:
        """What is new. A source that cannot be read gives a ``FeedFailed``."""

    def close(self) -> None:
        """Release the source."""


class MetricsFeed:
    """``GET /metrics`` of one server."""

    def __init__(self, client: Client, interval_s: float = 1.0) -> None:
        self.url = client.url
        self.interval_s = interval_s
        self._client = client

    def read(self) -> Sequence[Event]:
        """One page."""
        try:
            page = parse(self._client.body("/metrics"), WANTED, required_prefix=PREFIX)
        except HttpError as error:
            return [FeedFailed(time.time(), self.url, "metrics", error.reason)]
        except PageError as error:
            return [FeedFailed(time.time(), self.url, "metrics", str(error))]
        return [MetricsRead(time.time(), self.url, page)]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class WitnessFeed:
    """``GET /k3/witness`` of one server: what the counters on its metrics page cannot say."""

    interval_s = 5.0

    def __init__(self, client: Client) -> None:
        self.url = client.url
        self._client = client

    def read(self) -> Sequence[Event]:
        """The table of all workers."""
        now = time.time()
        try:
            workers = workers_of_table(self._client.json(ROUTE))
        except HttpError as error:
            return [FeedFailed(now, self.url, "witness", _why_no_witness(error))]
        except (ValueError, TypeError) as error:
            return [FeedFailed(now, self.url, "witness", f"unreadable witness table: {error}")]
        return [WitnessRead(now, self.url, workers)]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class BenchFeed:
    """A benchmark's growing event file (JSON lines)."""

    interval_s = 0.5

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> Sequence[Event]:
        """The whole lines that were added since the last read; a file that shrank is read from its start."""
        try:
            with files.opened(self._path) as stream:
                if stream.seek(0, 2) < self._offset:
                    self._offset = 0
                stream.seek(self._offset)
                data = stream.read()
        except (OSError, ValueError) as error:
            reason = f"cannot read `{self._path}`: {files.reason(error)}"
            return [FeedFailed(time.time(), str(self._path), "bench", reason)]
        whole, newline, _ = data.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return [event for row in whole.splitlines() if (event := self._event(row)) is not None]

    def _event(self, row: bytes) -> BenchReported | None:
        try:
            data = json.loads(row)
            return BenchReported(float(data["ts"]), str(self._path), data)
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def close(self) -> None:
        """Nothing is held."""


class Recorded:
    """A feed whose events are also written to a recording."""

    def __init__(self, feed: Feed, recorder: Recorder) -> None:
        self._feed = feed
        self._recorder = recorder
        self.interval_s = feed.interval_s

    def read(self) -> Sequence[Event]:
        """The feed's events, recorded."""
        events = self._feed.read()
        for event in events:
            self._recorder.write(event)
        return events

    def close(self) -> None:
        """Close the feed; the recorder belongs to whoever opened it."""
        self._feed.close()


def server_feeds(
    url: str, interval_s: float = 1.0, deadline_s: float = SCREEN_S, api_key: str | None = None
) -> list[Feed]:
    """The feeds of one server; each read gives up after ``deadline_s``."""

    def client() -> Client:
        return Client(url, api_key=api_key, timeout_s=deadline_s)

    return [MetricsFeed(client(), interval_s), WitnessFeed(client())]


def _why_no_witness(error: HttpError) -> str:
    status = getattr(error, "status", 0)
    if status == 404:
        return "the server has no /k3/witness route: it runs without k3ctl's runtime plugin"
    if status in (401, 403):
        return "the server wants its API key: set VLLM_API_KEY"
    return error.reason
