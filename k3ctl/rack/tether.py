"""The member's end of the connection: orders come in, news go out, and silence is an order too.

A stop, an end of the connection and a silence reach the program as SIGTERM, as they would from a person: it stops its
engine gracefully, and at a second one at once.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from k3ctl.errors import UsageError
from k3ctl.rack import wire

SAY_S = 3.0
"""A message that is not taken for so long is dropped: behind a cut cable nobody empties the pipe."""
LOST_GRACE_S = 2.0
"""From the loss of the lead to the firm stop: nobody is there to wait for, and the other nodes stop as well."""


def _sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class Tether:
    """``reading`` and ``writing`` are descriptors; ``interrupt`` is called from another thread."""

    def __init__(
        self,
        reading: int = 0,
        writing: int = 1,
        *,
        interrupt: Callable[[], None] = _sigterm,
        lease_s: float = wire.LEASE_S,
        lost_grace_s: float = LOST_GRACE_S,
    ) -> None:
        self._reading, self._writing = reading, writing
        self._interrupt = interrupt
        self._lease_s, self._lost_grace_s = lease_s, lost_grace_s
        self._orders: queue.Queue[dict[str, Any]] = queue.Queue()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self.detach_wanted = threading.Event()
        self.lost = ""
        """Why the lead is taken for gone; empty while it is there."""

    def start(self) -> None:
        """Begin to listen and to beat."""
        os.set_blocking(self._writing, False)
        for work in (self._listen, self._beat):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    def close(self) -> None:
        """Neither beat nor interrupt any more; what is said still goes out."""
        self._over.set()

    def say(self, kind: str, **fields: Any) -> None:
        """Send a message; one that nobody reads is no error."""
        data = memoryview(wire.line(kind, **fields))
        deadline = time.monotonic() + SAY_S
        with self._lock, contextlib.suppress(OSError):
            while data and time.monotonic() < deadline:
                if select.select([], [self._writing], [], 0.5)[1]:
                    with contextlib.suppress(BlockingIOError):
                        data = data[os.write(self._writing, data) :]

    def order(self, kind: str) -> dict[str, Any]:
        """Wait for the next order, which must be of this kind."""
        found = self._orders.get()
        if found["k3"] != kind:
            raise UsageError(
                f"`{found['k3']}` came where `{kind}` was expected",
                hint="both sides need the same version of k3ctl",
            )
        return found

    def next(self) -> dict[str, Any]:
        """Wait for the next order of any kind."""
        return self._orders.get()

    def _beat(self) -> None:
        while not self._over.wait(wire.BEAT_S):
            self.say("beat")

    def _listen(self) -> None:
        heard_at, buffer = time.monotonic(), b""
        while not self._over.is_set():
            ready, _, _ = select.select([self._reading], [], [], 0.5)
            if ready:
                data = os.read(self._reading, 1 << 16)
                if not data:
                    self._lose("its connection ended")
                    return
                heard_at = time.monotonic()
                *lines, buffer = (buffer + data).split(b"\n")
                for text in lines:
                    self._heard(wire.message(text))
            elif time.monotonic() - heard_at > self._lease_s:
                self._lose(f"nothing heard for {self._lease_s:.0f} s")
                return

    def _heard(self, found: dict[str, Any] | None) -> None:
        if found is None or found["k3"] == "beat":
            return
        if found["k3"] == "stop":
            self._interrupt()
        elif found["k3"] == "detach":
            self.detach_wanted.set()
        else:
            self._orders.put(found)

    def _lose(self, why: str) -> None:
        if self.detach_wanted.is_set() or self._over.is_set():
            return
        self.lost = why
        self._interrupt()
        if not self._over.wait(self._lost_grace_s):
            self._interrupt()
