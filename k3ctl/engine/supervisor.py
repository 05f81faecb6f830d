"""Runs the engine: starts it, keeps its log, says when it is ready, watches it, stops it gracefully.

One thread does all of this with a selector; a second one talks HTTP to the server, because a request may
block. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3ctl.engine import procs, rundir
from k3ctl.engine.client import Client
from k3ctl.engine.pump import LogPump
from k3ctl.errors import EngineError, K3Error

TICK_S = 0.2
PROBE_S = 0.25
DRAIN_S = 1.0
"""How long the log of an engine that has ended is still read: its children may have a last word."""


@dataclass(frozen=True)
class Orders:
    """What the supervisor is told by the front end; travels over a pipe, because it may hold secrets."""

    argv: list[str]
    env: dict[str, str]
    """Whole environment of the engine."""
    api_key: str | None = None
    grace_s: float = 15.0
    """From the first stop signal to the second, firm one."""
    canary_timeout_s: float = 120.0


class Supervisor:
    """One engine from start to end."""

    def __init__(self, path: Path, orders: Orders, lifeline: int) -> None:
        self._path = path
        self._orders = orders
        self._run = rundir.read(path)
        self._ready = False
        self._lifeline = lifeline
        self._selector = selectors.DefaultSelector()
        self._stops = 0
        self._stop_reason = ""
        self._asked_at: float | None = None
        self._over = threading.Event()

    def run(self) -> None:
        """Start the engine and stay until it has ended."""
        self._take_signals()
        if self._lifeline >= 0:
            self._selector.register(self._lifeline, selectors.EVENT_READ, self._lifeline_readable)
        engine, pump = self._start()
        if engine is None:
            return
        self._selector.register(pump.fd, selectors.EVENT_READ, pump.copy)
        watcher = threading.Thread(target=self._probe, daemon=True, name="probe")
        watcher.start()
        while engine.poll() is None:
            self._turn()
            self._press(engine)
        self._over.set()
        self._drain(pump)
        self._finish(engine.returncode, pump)

    def stop(self, reason: str) -> None:
        """Ask for a graceful stop; a second request makes it firm."""
        self._stops += 1
        if self._stops == 1:
            self._stop_reason = reason
            self._tell(state="stopping", reason=reason)

    def _start(self) -> tuple[subprocess.Popen[bytes] | None, LogPump]:
        reading, writing = os.pipe()
        pump = LogPump(reading, self._path / "engine.log")
        try:
            engine = subprocess.Popen(
                self._orders.argv,
                env=self._orders.env,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                preexec_fn=_as_engine,  # noqa: PLW1509 - the second thread starts later
            )
        except OSError as error:
            pump.note(f"cannot start the engine: {error}")
            self._tell(state="failed", reason=f"cannot start `{self._orders.argv[0]}`: {error.strerror}")
            return None, pump
        finally:
            os.close(writing)
        self._tell(engine_pid=engine.pid, supervisor_pid=os.getpid())
        return engine, pump

    def _tell(self, **changes: Any) -> None:
        """Note changes in the run directory; one that cannot be written must not cost the engine its life."""
        with contextlib.suppress(OSError, K3Error):
            rundir.update(self._path, **changes)

    def _take_signals(self) -> None:
        waking, signalled = os.pipe()
        os.set_blocking(waking, False)
        os.set_blocking(signalled, False)
        signal.set_wakeup_fd(signalled)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
        self._selector.register(waking, selectors.EVENT_READ, lambda: self._signalled(waking))

    def _signalled(self, fd: int) -> None:
        for number in os.read(fd, 64):
            if number in (signal.SIGTERM, signal.SIGINT):
                self.stop("asked to stop")

    def _lifeline_readable(self) -> None:
        """Its only writer is the front end: a byte lets the engine live on, an end means that k3ctl ended."""
        self._selector.unregister(self._lifeline)
        if not os.read(self._lifeline, 1):
            self.stop("k3ctl ended")

    def _turn(self) -> None:
        for key, _ in self._selector.select(TICK_S):
            key.data()

    def _press(self, engine: subprocess.Popen[bytes]) -> None:
        """Carry out a stop: SIGTERM to the API server, firm after the grace time or a second request."""
        if not self._stops:
            return
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            engine.send_signal(signal.SIGTERM)
        elif self._stops > 1 or time.monotonic() - self._asked_at > self._orders.grace_s:
            # the rest of the tree is the reaper's: it takes everything once this process ends
            engine.kill()

    def _drain(self, pump: LogPump) -> None:
        deadline = time.monotonic() + (DRAIN_S if self._stops < 2 else 0.0)
        self._selector.unregister(pump.fd)
        while pump.copy() and time.monotonic() < deadline and self._others():
            time.sleep(0.05)
        pump.copy()

    def _others(self) -> bool:
        mine = {self._run.session, os.getpid()}
        living = (p for p in procs.everyone() if p.state not in "ZX")
        return any(p.session == self._run.session and p.pid not in mine for p in living)

    def _finish(self, code: int, pump: LogPump) -> None:
        if self._stops:
            self._tell(state="stopped", exit_code=code, ended_at=time.time())
        else:
            reason = f"the engine {_how(code)} while {'serving' if self._ready else 'starting'}"
            pump.note(reason)
            self._tell(state="failed", exit_code=code, reason=reason, ended_at=time.time())
        pump.close()

    def _probe(self) -> None:
        """Second thread: wait for the server, prove it with a canary, mark the run ready."""
        client = Client(self._run.url, api_key=self._orders.api_key)
        while not self._over.wait(PROBE_S):
            if not client.healthy():
                continue
            with contextlib.suppress(EngineError):
                client.canary(self._run.served_model_name, self._orders.canary_timeout_s)
                self._ready = True
                if not self._stops:
                    self._tell(state="ready", ready_at=time.time())
                return


def _as_engine() -> None:
    """In the engine's process, before its program starts."""
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    procs.die_with_parent(signal.SIGTERM)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
