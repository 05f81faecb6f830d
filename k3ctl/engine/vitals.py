"""The supervisor's second thread: everything that talks HTTP to the server, because a request may block.

First it waits until the server answers a canary request, then it watches. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from k3ctl import files
from k3ctl.engine.client import Client
from k3ctl.engine.watch import Watch, WatchFinding
from k3ctl.errors import EngineError

START_POLL_S = 0.25
POLL_S = 5.0


class Vitals(threading.Thread):
    """Calls ``on_ready`` once and ``on_finding`` whenever there is something to tell."""

    def __init__(
        self,
        client: Client,
        model: str,
        run_dir: Path,
        *,
        on_ready: Callable[[], None],
        on_finding: Callable[[WatchFinding], None],
        canary_timeout_s: float,
        stall_s: float,
        idle_s: float,
    ) -> None:
        super().__init__(name="vitals", daemon=True)
        self._client = client
        self._model = model
        self._lock = run_dir / "traffic.lock"
        self._on_ready = on_ready
        self._on_finding = on_finding
        self._canary_timeout_s = canary_timeout_s
        self._stall_s = stall_s
        self._idle_s = idle_s
        self._over = threading.Event()

    def stop(self) -> None:
        """Do not begin anything new."""
        self._over.set()

    def run(self) -> None:
        """Until ``stop``."""
        if not self._until_ready():
            return
        self._on_ready()
        watch = Watch(time.monotonic(), stall_s=self._stall_s, idle_s=self._idle_s)
        while not self._over.wait(min(POLL_S, self._stall_s / 3, self._idle_s / 3)):
            for finding in (self._look(watch), self._ask(watch)):
                if finding is not None and not self._over.is_set():
                    self._on_finding(finding)

    def _until_ready(self) -> bool:
        while not self._over.wait(START_POLL_S):
            if self._client.healthy():
                with contextlib.suppress(EngineError):
                    self._client.canary(self._model, self._canary_timeout_s)
                    return True
        return False

    def _look(self, watch: Watch) -> WatchFinding | None:
        try:
            return watch.saw_load(self._client.load(), time.monotonic())
        except EngineError as error:
            return watch.saw_no_metrics(error.message)

    def _ask(self, watch: Watch) -> WatchFinding | None:
        if not watch.wants_canary(time.monotonic()):
            return None
        with self._undisturbed() as allowed:
            if not allowed:
                return None
            try:
                self._client.canary(self._model, self._canary_timeout_s)
            except EngineError as error:
                return watch.saw_silence(error.message, time.monotonic())
            return watch.saw_answer(time.monotonic())

    @contextlib.contextmanager
    def _undisturbed(self) -> Iterator[bool]:
        """Whether no command measures or counts steps now (see ``rundir.quiet``)."""
        try:
            with files.append(self._lock) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield True
        except BlockingIOError:
            yield False
        except OSError:
            # the lock cannot be made (a full disk): nobody can hold it either
            yield True
