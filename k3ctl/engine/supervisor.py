"""Runs the engine: starts it, keeps its log, says when it is ready, watches it, stops it gracefully.

One thread does all of this with a selector, and keeps in touch with the other nodes' supervisors; a second one
(``vitals``) talks HTTP to the server. Standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3ctl.engine import logs, procs, rundir, stacks
from k3ctl.engine.client import Client
from k3ctl.engine.peers import Group, Peers
from k3ctl.engine.pump import LogPump
from k3ctl.engine.territory import Territory
from k3ctl.engine.vitals import Vitals
from k3ctl.engine.watch import IDLE_S, STALL_S, WatchFinding
from k3ctl.errors import K3Error

TICK_S = 0.2
DRAIN_S = 1.0
"""How long the log of an engine that has ended is still read: its children may have a last word."""
REAPER_KILLED = "its reaper was killed"
FAILED_GRACE_S = 2.0
"""Grace for an engine that is stopped because another node failed: its ranks spin in a collective."""


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
    stall_s: float = STALL_S
    idle_s: float = IDLE_S
    umask: int = 0o022
    """File mask of the front end, which the engine keeps: its caches may be shared. The run's own files are private."""
    log_part_bytes: int = logs.PART_BYTES
    group: Mapping[str, Any] | None = None
    """Fields of a ``peers.Group`` when several nodes serve together."""


class Supervisor:
    """One engine from start to end."""

    def __init__(self, path: Path, orders: Orders, lifeline: int, territory: Territory) -> None:
        self._path = path
        self._orders = orders
        self._run = rundir.read(path)
        self._lifeline = lifeline
        self._territory = territory
        self._selector = selectors.DefaultSelector()
        self._stops = 0
        self._failed = ""
        self._asked_at: float | None = None
        self._ready = threading.Event()
        self._peers: Peers | None = None
        self._vitals: Vitals | None = None

    def run(self) -> None:
        """Start the engine and stay until it has ended."""
        self._take_signals()
        if self._lifeline >= 0:
            self._selector.register(self._lifeline, selectors.EVENT_READ, self._lifeline_readable)
        if not self._join():
            return
        engine, pump = self._start()
        if engine is None:
            return
        self._selector.register(pump.fd, selectors.EVENT_READ, pump.copy)
        self._vitals = self._make_vitals()
        while engine.poll() is None:
            self._turn()
            self._press(engine)
        if self._vitals is not None:
            self._vitals.stop()
        self._drain(pump)
        self._finish(engine.returncode, pump)

    def stop(self, reason: str, failed: bool = False) -> None:
        """Ask for a graceful stop; a second request makes it firm."""
        self._stops += 1
        if self._stops > 1:
            return
        if failed:
            self._failed = reason
        self._tell(state="stopping", reason=reason)
        if self._peers is not None:
            self._peers.say("failed" if failed else "stopping", reason)

    @property
    def firm(self) -> bool:
        """Whether the stop must not wait: asked for twice, or another node failed."""
        return self._stops > 1 or bool(self._failed and self._asked_at and self._waited_s() > FAILED_GRACE_S)

    def _waited_s(self) -> float:
        return time.monotonic() - (self._asked_at or time.monotonic())

    def _join(self) -> bool:
        """Open this node's place in the group, if there is one."""
        if self._orders.group is None:
            return True
        group = Group(**self._orders.group)
        try:
            self._peers = Peers(group, self._selector, self.stop)
        except OSError as error:
            where = f"{group.address}:{group.port}"
            self._tell(
                state="failed", reason=f"cannot listen for the other nodes on {where}: {error.strerror}"
            )
            return False
        return True

    def _start(self) -> tuple[subprocess.Popen[bytes] | None, LogPump]:
        reading, writing = os.pipe()
        pump = LogPump(reading, self._path / "engine.log", self._orders.log_part_bytes)
        try:
            engine = subprocess.Popen(
                self._orders.argv,
                env=self._orders.env,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                umask=self._orders.umask,
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

    def _make_vitals(self) -> Vitals | None:
        """Only node 0 has a server to talk to."""
        if self._run.node_rank > 0:
            return None
        vitals = Vitals(
            Client(self._run.url, api_key=self._orders.api_key),
            self._run.served_model_name,
            self._path,
            on_ready=self._ready.set,
            on_finding=self._found,
            canary_timeout_s=self._orders.canary_timeout_s,
            stall_s=self._orders.stall_s,
            idle_s=self._orders.idle_s,
        )
        vitals.start()
        return vitals

    def _found(self, finding: WatchFinding) -> None:
        """From the thread of the vitals: save what is only there now, then tell."""
        files: tuple[str, ...] = ()
        if finding.evidence:
            besides = {self._run.session, os.getpid()}
            members = self._territory.members(besides)
            files = stacks.save(self._path, members, self._orders.argv[0], finding.kind)
        with contextlib.suppress(OSError, K3Error):
            rundir.add_finding(self._path, finding.kind, finding.text, files)

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
            if number not in (signal.SIGTERM, signal.SIGINT):
                continue
            if os.getppid() == self._territory.session:
                self.stop("asked to stop")
            else:
                self.stop(REAPER_KILLED, failed=True)

    def _lifeline_readable(self) -> None:
        """Its only writer is the front end: a byte lets the engine live on, an end means that k3ctl ended."""
        self._selector.unregister(self._lifeline)
        if not os.read(self._lifeline, 1):
            self.stop("k3ctl ended")

    def _turn(self) -> None:
        for key, _ in self._selector.select(TICK_S):
            key.data()
        if self._peers is not None:
            self._peers.tick()
            if self._run.node_rank > 0 and self._peers.all_ready():
                self._ready.set()
        if self._ready.is_set() and self._run.state == "starting" and not self._stops:
            self._run = dataclasses.replace(self._run, state="ready")
            self._tell(state="ready", ready_at=time.time())
            if self._peers is not None:
                self._peers.say("ready")

    def _press(self, engine: subprocess.Popen[bytes]) -> None:
        """Carry out a stop: SIGTERM to the API server, firm after the grace time or a second request."""
        if not self._stops:
            return
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            # the reaper notes segments as they appear; this look is for the case that it was killed
            self._territory.observe(force=True)
            engine.send_signal(signal.SIGTERM)
        elif self.firm or self._waited_s() > self._orders.grace_s:
            # the rest of the tree is the reaper's: it takes everything once this process ends
            engine.kill()

    def _drain(self, pump: LogPump) -> None:
        deadline = time.monotonic() + (0.0 if self.firm else DRAIN_S)
        self._selector.unregister(pump.fd)
        others = {self._run.session, os.getpid()}
        while pump.copy() and time.monotonic() < deadline and self._territory.members(others):
            time.sleep(0.05)
        pump.copy()

    def _finish(self, code: int, pump: LogPump) -> None:
        if self._stops and not self._failed:
            self._tell(state="stopped", exit_code=code, ended_at=time.time())
        else:
            served = "serving" if self._ready.is_set() else "starting"
            reason = self._failed or f"the engine {_how(code)} while {served}"
            pump.note(reason)
            self._tell(state="failed", exit_code=code, reason=reason, ended_at=time.time())
            if self._peers is not None:
                self._peers.say("failed", reason)
        if self._peers is not None:
            self._peers.close()
        pump.close()


def _as_engine() -> None:
    """In the engine's process, before its program starts."""
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # not SIGTERM: with nobody left to insist, a server that is busy or stopped would keep its GPUs
    procs.die_with_parent(signal.SIGKILL)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
