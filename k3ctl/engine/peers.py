"""Fail-stop over nodes: when one node's engine ends, the others must not spin for ever in a collective.

Node 0's supervisor listens; the others connect to it. Everyone sends a short line every second. A line that says
``failed`` or ``stopping``, a connection that breaks, or eight seconds without a line stop the engine on every
node. Non-blocking, in the supervisor's own selector. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

BEAT_S = 1.0
LOST_S = 8.0
JOIN_S = 900.0
"""How long a node may be missing at the start: trays boot and images are pulled at different speeds."""
MAX_LINE = 4096


@dataclass(frozen=True)
class Group:
    """Who belongs together. ``token`` tells a stray connection, or another launch, from a peer."""

    rank: int
    nodes: int
    address: str
    port: int
    token: str


@dataclass
class _Link:
    """One connection."""

    socket: socket.socket
    heard_at: float
    rank: int = -1
    buffer: bytes = b""
    connected: bool = True
    state: str = field(default="")


class Peers:
    """This node's view of the others. ``on_loss`` is called once: why to stop, and whether that is a failure."""

    def __init__(
        self,
        group: Group,
        selector: selectors.BaseSelector,
        on_loss: Callable[[str, bool], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        lost_s: float = LOST_S,
        join_s: float = JOIN_S,
    ) -> None:
        self.group = group
        self.state = "starting"
        self._why = ""
        self._selector = selector
        self._on_loss = on_loss
        self._clock = clock
        self._lost_s = lost_s
        self._join_s = join_s
        self._born = clock()
        self._beat_at = 0.0
        self._retry_at = 0.0
        self._links: list[_Link] = []
        self._over = False
        self._server = self._listen() if group.rank == 0 else None

    def tick(self) -> None:
        """Send, connect, and look for silence. To be called several times a second."""
        now = self._clock()
        if self._over:
            return
        if self._server is None and not self._links and now >= self._retry_at:
            self._connect(now)
        if now - self._beat_at >= BEAT_S:
            self._beat_at = now
            self._send_all()
        self._look(now)

    def say(self, state: str, why: str = "") -> None:
        """Tell everyone this node's state now: ``starting``, ``ready``, ``stopping`` or ``failed``."""
        self.state, self._why = state, why
        self._send_all()
        if state in ("stopping", "failed"):
            self._over = True

    def all_ready(self) -> bool:
        """On node 0 whether every other node is there; elsewhere whether node 0 says that the server is ready."""
        if self._server is not None:
            return len(self._known()) == self.group.nodes - 1
        return any(link.state == "ready" for link in self._links)

    def close(self) -> None:
        """Close everything."""
        for link in list(self._links):
            self._drop(link)
        if self._server is not None:
            self._selector.unregister(self._server)
            self._server.close()

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.group.address else socket.AF_INET
        server = socket.socket(family, socket.SOCK_STREAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((self.group.address, self.group.port))
        server.listen()
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ, self._accept)
        return server

    def _accept(self) -> None:
        assert self._server is not None
        with contextlib.suppress(OSError):
            connection, _ = self._server.accept()
            self._add(connection)

    def _connect(self, now: float) -> None:
        self._retry_at = now + 1.0
        family = socket.AF_INET6 if ":" in self.group.address else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.settimeout(1.0)
        try:
            connection.connect((self.group.address, self.group.port))
        except OSError:
            connection.close()
            return
        self._add(connection, rank=0)
        self._send_all()

    def _add(self, connection: socket.socket, rank: int = -1) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(connection, self._clock(), rank)
        self._links.append(link)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._receive(link))

    def _drop(self, link: _Link) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(link.socket)
        link.socket.close()
        if link in self._links:
            self._links.remove(link)

    def _send_all(self) -> None:
        said = {"token": self.group.token, "rank": self.group.rank, "state": self.state, "why": self._why}
        line = json.dumps(said).encode() + b"\n"
        for link in list(self._links):
            try:
                link.socket.send(line)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EWOULDBLOCK):
                    self._broken(link)

    def _receive(self, link: _Link) -> None:
        try:
            data = link.socket.recv(MAX_LINE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._broken(link)
            return
        *lines, link.buffer = (link.buffer + data).split(b"\n")
        if len(link.buffer) > MAX_LINE or not all(self._heard(link, line) for line in lines):
            self._drop(link)

    def _heard(self, link: _Link, line: bytes) -> bool:
        """Take in one line; False for one that no peer of this launch would send."""
        try:
            said = json.loads(line)
            token, rank, state, why = said["token"], int(said["rank"]), str(said["state"]), str(said["why"])
        except (ValueError, TypeError, KeyError):
            return False
        if token != self.group.token or not 0 <= rank < self.group.nodes:
            return False
        link.rank, link.state, link.heard_at = rank, state, self._clock()
        if state in ("failed", "stopping"):
            self._lose(f"node {rank} {'failed' if state == 'failed' else 'stops'}: {why}", state == "failed")
        return True

    def _broken(self, link: _Link) -> None:
        known = link in self._known()
        self._drop(link)
        if known:
            self._lose(f"node {link.rank} is gone (its connection broke)")

    def _look(self, now: float) -> None:
        for link in self._known():
            if now - link.heard_at > self._lost_s:
                self._lose(f"node {link.rank} is gone (nothing heard for {self._lost_s:.0f} s)")
                return
        missing = (
            self.group.nodes - 1 - len(self._known()) if self.group.rank == 0 else int(not self._known())
        )
        if missing and now - self._born > self._join_s:
            self._lose(f"{missing} of {self.group.nodes} nodes did not join within {self._join_s:.0f} s")

    def _known(self) -> list[_Link]:
        return [link for link in self._links if link.rank >= 0 and link.state]

    def _lose(self, reason: str, failed: bool = True) -> None:
        if not self._over:
            self._over = True
            self._on_loss(reason, failed)
