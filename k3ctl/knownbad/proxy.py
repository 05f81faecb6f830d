"""The proxy: an HTTP server on loopback before a sound one. All of this package's I/O.

Without a mode everything goes through as it came, so that a check which fails behind a mode fails for its fault. A
client that goes away ends its request at the server behind.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from k3ctl.knownbad import requests
from k3ctl.knownbad.modes import Mode, Page

HOST = "127.0.0.1"
"""A server that lies is for this machine only."""
TIMEOUT_S = 600.0
LOOK_S = 0.1
REMEMBERED = 512
_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "accept-encoding"}
)
"""Headers that belong to one connection."""

Json = dict[str, Any]


class KnownBad(ThreadingHTTPServer):
    """The proxy's server. ``mode``: None lets everything through."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, upstream: str, mode: Mode | None, other: str | None = None, port: int = 0) -> None:
        super().__init__((HOST, port), _Exchange)
        self.upstream, self.mode, self.other = upstream.rstrip("/"), mode, other and other.rstrip("/")
        self._earlier: list[requests.Asked] = []
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{HOST}:{self.server_address[1]}"

    def asked(self, path: str, body: Json) -> tuple[str, Json]:
        """The server and the body that a request is sent on with."""
        if self.mode is None:
            return self.upstream, body
        if self.mode.other and self.other:
            return self.other, body
        if self.mode.request is None:
            return self.upstream, body
        with self._lock:
            sent = self.mode.request(path, body, self._earlier)
            if (now := requests.asked(path, body)) is not None:
                self._earlier = [*self._earlier, now][-REMEMBERED:]
        return self.upstream, sent

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news."""


@contextmanager
def serve(
    upstream: str, mode: Mode | None = None, *, other: str | None = None, port: int = 0
) -> Iterator[str]:
    """The proxy's address, while it runs. Raises OSError when ``port`` is taken."""
    server = KnownBad(upstream, mode, other, port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": LOOK_S}, daemon=True)
    thread.start()
    try:
        yield server.url
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: KnownBad

    def log_message(self, *_: Any) -> None:
        """Silent: what was asked and answered is the caller's business."""

    def do_GET(self) -> None:
        """Pages and lists."""
        self._go_on(self.server.upstream, None, None)

    def do_POST(self) -> None:
        """Requests for answers, and everything else that has a body."""
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        body = _object(raw)
        if body is None:
            return self._go_on(self.server.upstream, raw, None)
        upstream, sent = self.server.asked(self.path, body)
        return self._go_on(upstream, raw if sent is body else json.dumps(sent).encode(), body)

    def _go_on(self, upstream: str, raw: bytes | None, asked: Json | None) -> None:
        """Send the request on and its answer back."""
        parts = urlsplit(upstream)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        done = threading.Event()
        try:
            connection.connect()
            threading.Thread(target=self._watch, args=(connection.sock, done), daemon=True).start()
            connection.request(
                self.command, parts.path + self.path, raw, headers | {"Accept-Encoding": "identity"}
            )
            answer = connection.getresponse()
            if "text/event-stream" in (answer.getheader("content-type") or ""):
                self._stream(answer, asked or {})
            else:
                self._whole(answer, asked)
        except (OSError, http.client.HTTPException):
            # a server that is gone is gone for the client, too: an error page of our own would count as a fault
            self.close_connection = True
        finally:
            done.set()
            connection.close()

    def _watch(self, upstream: socket.socket, done: threading.Event) -> None:
        """Hang up on the server behind when the client has gone, unless the mode is deaf."""
        if self.server.mode is not None and self.server.mode.deaf:
            return
        with contextlib.suppress(OSError, ValueError):
            while not done.is_set():
                readable, _, _ = select.select([self.connection], [], [], LOOK_S)
                if readable and not self.connection.recv(1, socket.MSG_PEEK):
                    upstream.shutdown(socket.SHUT_RDWR)
                    return
                if readable:
                    done.wait(LOOK_S)  # the client's next request is there already

    def _whole(self, answer: http.client.HTTPResponse, asked: Json | None) -> None:
        data = answer.read()
        if self.server.mode is not None and answer.status == 200:
            data = _told(self.server.mode, self.path, data, asked)
        self._head(answer, {"Content-Length": str(len(data))})
        self.wfile.write(data)

    def _stream(self, answer: http.client.HTTPResponse, asked: Json) -> None:
        self._head(answer, {"Transfer-Encoding": "chunked"})
        seen: dict[Any, Json] = {}
        deaf = self.server.mode is not None and self.server.mode.deaf
        gone = False
        for line in iter(answer.readline, b""):
            told = line if self.server.mode is None else _told_line(self.server.mode, line, asked, seen)
            try:
                if not gone:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(told), told))
                    self.wfile.flush()
            except OSError:
                if not deaf:
                    raise
                gone = True
        self.wfile.write(b"0\r\n\r\n")

    def _head(self, answer: http.client.HTTPResponse, own: Mapping[str, str]) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        for name, value in own.items():
            self.send_header(name, value)
        self.end_headers()


def _told(mode: Mode, path: str, data: bytes, asked: Json | None) -> bytes:
    if asked is None:
        return data if mode.page is None else _told_page(mode.page, path, data)
    answer = _object(data)
    return data if answer is None else _changed(mode, data, answer, asked, {})


def _told_page(change: Page, path: str, data: bytes) -> bytes:
    return change(path.partition("?")[0], data.decode(errors="surrogateescape")).encode(
        errors="surrogateescape"
    )


def _told_line(mode: Mode, line: bytes, asked: Json, seen: dict[Any, Json]) -> bytes:
    text = line.strip()
    event = _object(text.removeprefix(b"data:")) if text.startswith(b"data:") else None
    return line if event is None else b"data: " + _changed(mode, text[5:].strip(), event, asked, seen) + b"\n"


def _changed(mode: Mode, raw: bytes, answer: Json, asked: Json, seen: dict[Any, Json]) -> bytes:
    """The answer with the mode's fault; the very bytes that came when nothing changes."""
    choices = answer.get("choices")
    if mode.choice is None or not isinstance(choices, list):
        return raw
    told = [mode.choice(choice, seen.setdefault(choice.get("index"), {}), asked) for choice in choices]
    return raw if told == choices else json.dumps(answer | {"choices": told}).encode()


def _object(data: bytes) -> Json | None:
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
