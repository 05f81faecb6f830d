"""Fail-stop over nodes: when one node's engine ends, the others must not spin for ever in a collective.

Node 0's supervisor listens; the others connect to it. Everyone sends a short line every second. A line that says
``failed`` or ``stopping``, a connection that breaks, or eight seconds without a line stop the engine on every
node. Non-blocking, in the supervisor's own selector. Standard library only.

Both sides open with a fresh nonce; every line after it carries a keyed digest over both nonces, its number and its
content. So only who knows the secret of the launch is heard, and no line can be sent again, back or elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

BEAT_S = 1.0
LOST_S = 8.0
JOIN_S = 900.0
"""How long a node may be missing at the start: trays boot and images are pulled at different speeds."""
MAX_LINE = 4096
WHY = 1000
"""Longest reason that is sent on."""
STRANGER_S = 10.0
"""How long a connection may stay silent before it has shown that it knows the secret."""
MAX_STRANGERS = 64
OTHER_SECRET = "another secret than this node: give every node the same K3CTL_PEER_SECRET"


@dataclass(frozen=True)
class Group:
    """Who belongs together. ``token`` is the secret of the launch: it never crosses the network."""

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
    mine: str = field(default_factory=lambda: secrets.token_hex(16))
    theirs: str = ""
    """Nonces of this connection; ``theirs`` is empty until it has come."""
    sent: int = 0
    got: int = 0
    """Number of the last line in each direction."""


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
        self._refused = 0
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

    def _add(self, connection: socket.socket, rank: int = -1) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(connection, self._clock(), rank)
        if len(self._links) - len(self._known()) >= MAX_STRANGERS:
            connection.close()
            return
        self._links.append(link)
        self._put(link, {"hello": link.mine})
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._receive(link))

    def _drop(self, link: _Link) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(link.socket)
        link.socket.close()
        if link in self._links:
            self._links.remove(link)

    def _send_all(self) -> None:
        for link in list(self._links):
            if link.theirs:
                link.sent += 1
                said = [self.group.rank, link.sent, self.state, self._why[:WHY]]
                self._put(link, {"said": said, "proof": self._proof(link.mine, link.theirs, said)})

    def _put(self, link: _Link, what: Mapping[str, Any]) -> None:
        try:
            link.socket.send(json.dumps(what).encode() + b"\n")
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EWOULDBLOCK):
                self._broken(link)

    def _proof(self, sender: str, receiver: str, said: Any) -> str:
        content = json.dumps([sender, receiver, said]).encode()
        return hmac.new(self.group.token.encode(), content, hashlib.sha256).hexdigest()

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
            self._broken(link)

    def _heard(self, link: _Link, line: bytes) -> bool:
        """Take in one line; False for one that no peer of this launch would send."""
        try:
            message = json.loads(line)
            if not link.theirs:
                return self._greeted(link, message["hello"])
            (rank, number, state, why), proof = message["said"], message["proof"]
            fits = (
                type(rank) is int and type(number) is int and isinstance(state, str) and isinstance(why, str)
            )
            expected = self._proof(link.theirs, link.mine, message["said"])
            genuine = fits and hmac.compare_digest(expected, str(proof).encode(errors="replace").decode())
        except (ValueError, TypeError, KeyError, RecursionError):
            return False
        if not genuine:
            self._refused += 1
            if self._server is None and not self._known():
                self._lose(f"node 0 has {OTHER_SECRET}")
            return False
        if rank == self.group.rank or not 0 <= rank < self.group.nodes or number <= link.got:
            return False
        if link.state and rank != link.rank:
            return False
        link.rank, link.state, link.got, link.heard_at = rank, state, number, self._clock()
        if state in ("failed", "stopping"):
            self._lose(f"node {rank} {'failed' if state == 'failed' else 'stops'}: {why}", state == "failed")
        return True

    def _greeted(self, link: _Link, nonce: Any) -> bool:
        """The other side's nonce; our own coming back is an echo."""
        if not isinstance(nonce, str) or not 16 <= len(nonce) <= 128 or nonce == link.mine:
            return False
        link.theirs = nonce
        self._send_all()
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
        for link in [one for one in self._links if not one.state and now - one.heard_at > STRANGER_S]:
            self._drop(link)
        missing = (
            self.group.nodes - 1 - len(self._known()) if self.group.rank == 0 else int(not self._known())
        )
        if missing and now - self._born > self._join_s:
            why = f"; {self._refused} times one came with {OTHER_SECRET}" if self._refused else ""
            self._lose(f"{missing} of {self.group.nodes} nodes did not join within {self._join_s:.0f} s{why}")

    def _known(self) -> list[_Link]:
        return [link for link in self._links if link.rank >= 0 and link.state]

    def _lose(self, reason: str, failed: bool = True) -> None:
        if not self._over:
            self._over = True
            self._on_loss(reason, failed)
