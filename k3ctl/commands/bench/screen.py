"""``k3ctl bench --tui``: the load in a thread, the monitor's screens in front of it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from k3ctl import output
from k3ctl.deployment import Deployment
from k3ctl.engine.rundir import Run
from k3ctl.feeds.sources import BenchFeed, Feed, server_feeds
from k3ctl.loadtest import clients
from k3ctl.loadtest.driver import BenchResult
from k3ctl.loadtest.target import Target
from k3ctl.tui import app as tui_app
from k3ctl.tui.app import MonitorApp

Load = Callable[[threading.Event, Callable[[str], None]], BenchResult]
"""A benchmark to run: gets the flag that stops it and the function that takes its lines."""


class BenchApp(MonitorApp):
    """The monitor, opened on its bench screen; it closes when ``job`` ends."""

    TITLE = "k3ctl bench"
    DEFAULT_MODE = "bench"
    # Textual looks for a relative name beside the subclass
    CSS_PATH = str(Path(tui_app.__file__).with_name("monitor.tcss"))

    def __init__(self, job: _Job, feeds: Sequence[Feed], deployment: Deployment) -> None:
        super().__init__(feeds, deployment=deployment)
        self._job = job

    def on_mount(self) -> None:
        """Start the feeds, then the load."""
        super().on_mount()
        self._job.start(when_done=lambda: self.call_from_thread(self.exit))


class _Job:
    """The load's thread and what came of it."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._done = threading.Event()
        self._result: BenchResult | None = None
        self._error: BaseException | None = None
        self.stop = threading.Event()
        self.on_screen = True

    def start(self, when_done: Callable[[], Any]) -> None:
        threading.Thread(target=self._run, args=(when_done,), name="k3ctl-bench", daemon=True).start()

    def _run(self, when_done: Callable[[], Any]) -> None:
        try:
            self._result = self._load(self.stop, self._line)
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()
        if self.on_screen:
            with contextlib.suppress(RuntimeError):  # the screen was left in this very moment
                when_done()

    def _line(self, text: str) -> None:
        """Lines go to the terminal once the screen is closed."""
        if not self.on_screen:
            output.note(text)

    def finish(self) -> BenchResult:
        """Wait for the load; Ctrl-C stops it and keeps what finished."""
        self.on_screen = False
        if not self._done.is_set():
            output.note("the load goes on; Ctrl-C stops it")
        while True:
            try:
                # not Thread.join: a Ctrl-C inside it can mark a running thread as ended
                if self._done.wait(0.2):
                    break
            except KeyboardInterrupt:
                self.stop.set()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


def watch(
    load: Load,
    target: Target,
    record: Run | None,
    directory: Path,
    *,
    api_key: str | None = None,
    headless: bool = False,
) -> BenchResult:
    """Run ``load`` behind the live screen; leaving the screen (q) leaves the load running, with plain lines."""
    job = _Job(load)
    try:
        BenchApp(job, _feeds(target, record, directory, api_key), target.deployment).run(headless=headless)
    except BaseException:
        job.stop.set()
        raise
    return job.finish()


def _feeds(target: Target, record: Run | None, directory: Path, api_key: str | None) -> list[Feed]:
    feeds: list[Feed] = [
        *server_feeds(target.url, api_key=api_key),
        BenchFeed(directory / "raw" / clients.EVENTS),
    ]
    if record is not None:
        from k3ctl.feeds.gpu_source import GpuFeed
        from k3ctl.feeds.run_source import RunFeed

        feeds += [RunFeed(record.dir), GpuFeed()]
    return feeds
