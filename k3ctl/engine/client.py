"""The API of a served engine: health, canary request, load, JSON routes; and a transport for the supervisor.

Time and size of every answer are bounded, a redirect is never followed, and no proxy is used: an ``http_proxy`` in a
site profile must not turn a loopback request into a remote one. Standard library only, because the supervisor uses it;
commands use ``k3ctl.server.client``, which speaks through httpx.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from k3ctl import signals
from k3ctl.errors import EngineError

MAX_BYTES = 8 << 20
"""Longest answer that is read; a metrics page of eight engines has less than one MiB."""


class HttpError(EngineError):
    """No usable answer. ``reason`` is the short form of the message, without the address."""

    def __init__(self, message: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class Unreachable(HttpError):
    """Nothing answered, or not in time."""

    code = "unreachable"


class BadAnswer(HttpError):
    """Something answered, but not what a vLLM server answers."""

    code = "bad-answer"

    def __init__(self, message: str, reason: str = "", *, status: int = 0, hint: str | None = None) -> None:
        super().__init__(message, reason or message, hint=hint)
        self.status = status


@dataclass(frozen=True)
class Load:
    """What the engine has done and is doing, summed over engines."""

    generated_tokens: float
    prompt_tokens: float
    running: float
    waiting: float
    cache_used: float = 0.0
    """Share of the cache's blocks in use: it moves while a long prompt is read, when no token counter does."""
    steps: float = 0.0
    """Steps that the engine counted, and those that the witness counted."""

    @property
    def progress(self) -> tuple[float, ...]:
        """Changes whenever the engine gets anything done."""
        return (self.generated_tokens, self.prompt_tokens, self.cache_used, self.steps)


@dataclass(frozen=True)
class Answer:
    """What came back: the status, the body, and where a redirect wanted to go."""

    status: int
    body: bytes
    location: str = ""


class Client:
    """One server. ``url`` is its root, without ``/v1``; ``timeout_s`` bounds a whole exchange."""

    def __init__(
        self, url: str, *, api_key: str | None = None, timeout_s: float = 5.0, max_bytes: int = MAX_BYTES
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes

    def healthy(self) -> bool:
        """Whether ``/health`` says 200: a hint, no proof of life (it says so even with a dead rank)."""
        try:
            self.body("/health")
        except EngineError:
            return False
        return True

    def canary(self, model: str, timeout_s: float) -> None:
        """Generate one token from one token: the cheapest proof that the engine core works.

        Raises:
            Unreachable: no answer in time.
            BadAnswer: an error, or an answer without a choice.
        """
        body = {"model": model, "prompt": [0], "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        answer = self.json("/v1/completions", body, timeout_s=timeout_s)
        if not isinstance(answer, dict) or not answer.get("choices"):
            raise BadAnswer("the canary request got an answer without a choice")

    def load(self) -> Load:
        """Work counters from ``/metrics``.

        Raises:
            BadAnswer: the page holds no vLLM series (a login page, another server, no stats).
        """
        series = metrics(self.text("/metrics"))
        if signals.RUNNING not in series:
            raise BadAnswer(
                f"`{self.url}/metrics` holds no vLLM metrics",
                hint="is this a vLLM server? was it started with --disable-log-stats?",
            )
        return Load(
            generated_tokens=series.get(signals.GENERATION_TOKENS, 0.0),
            prompt_tokens=series.get(signals.PROMPT_TOKENS, 0.0),
            running=series[signals.RUNNING],
            waiting=series.get(signals.WAITING, 0.0),
            cache_used=series.get(signals.CACHE_USED, 0.0),
            steps=series.get(f"{signals.ITERATION_TOKENS}_count", 0.0) + series.get(signals.STEPS, 0.0),
        )

    def json(
        self, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> Any:
        """GET (or POST with a body) a JSON document."""
        text = self.text(path, body, timeout_s=timeout_s)
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise BadAnswer(
                f"`{self.url}{path}` did not answer JSON but `{text[:60].strip()}…`",
                "the answer is not JSON",
                hint="is this a vLLM server?",
            ) from None

    def text(
        self, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> str:
        """GET (or POST JSON) and return the body as text."""
        return self.body(path, body, timeout_s=timeout_s).decode(errors="replace")

    def body(
        self, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> bytes:
        """GET (or POST JSON) and return the body of a good answer.

        Raises:
            Unreachable: no whole answer in ``timeout_s`` seconds, or nothing that speaks HTTP.
            BadAnswer: another status than 2xx (a redirect too), or more than ``max_bytes``.
        """
        data = None if body is None else json.dumps(body).encode()
        answer = self._exchange(path, data, timeout_s or self._timeout_s)
        if 200 <= answer.status < 300:
            return answer.body
        raise self._refused(path, answer)

    def headers(self, data: bytes | None) -> dict[str, str]:
        """Headers of a request."""
        own = {"Accept": "*/*", "Accept-Encoding": "identity"}
        if data is not None:
            own["Content-Type"] = "application/json"
        if self._api_key:
            own["Authorization"] = f"Bearer {self._api_key}"
        return own

    def _refused(self, path: str, answer: Answer) -> BadAnswer:
        reason = f"HTTP {answer.status} {http.client.responses.get(answer.status, '')}".rstrip()
        if answer.location:
            return BadAnswer(
                f"`{self.url}{path}` redirects to `{answer.location[:200]}`",
                reason,
                status=answer.status,
                hint="redirects are not followed, they could carry the key elsewhere: give that address with --url",
            )
        detail = " ".join(answer.body[:400].decode(errors="replace").split())
        return BadAnswer(
            f"`{self.url}{path}` answered {answer.status}: {detail}", reason, status=answer.status
        )

    def _exchange(self, path: str, data: bytes | None, timeout_s: float) -> Answer:
        """One request on a connection of its own, which a timer cuts when the time is over."""
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        end = time.monotonic() + timeout_s
        try:
            connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
            connection.connect()
            cut = threading.Timer(max(0.0, end - time.monotonic()), _hang_up, [connection.sock])
            cut.daemon = True
            cut.start()
            try:
                method = "GET" if data is None else "POST"
                connection.request(method, parts.path + path, data, self.headers(data))
                response = connection.getresponse()
                body = response.read(self._max_bytes + 1)
                if time.monotonic() >= end:  # a body without a length just ends when it is cut
                    raise TimeoutError
                if response.length and len(body) <= self._max_bytes:
                    raise http.client.IncompleteRead(body)
            finally:
                cut.cancel()
                connection.close()
        except (OSError, ValueError, http.client.HTTPException) as error:
            late = time.monotonic() >= end or isinstance(error, TimeoutError)
            raise self.unreachable(path, error, timeout_s if late else None) from None
        return self.bounded(path, Answer(response.status, body, response.getheader("Location") or ""))

    def bounded(self, path: str, answer: Answer) -> Answer:
        """The answer, when it is not longer than allowed. Raises BadAnswer."""
        if len(answer.body) <= self._max_bytes:
            return answer
        reason = f"an answer larger than {self._max_bytes >> 20} MiB"
        raise BadAnswer(f"`{self.url}{path}` gives {reason}", reason, status=answer.status)

    def unreachable(self, path: str, error: Exception, late_s: float | None = None) -> Unreachable:
        """The error for an exchange that failed; ``late_s``: it took longer than this."""
        reason = f"no answer within {late_s:g} s" if late_s is not None else _reason(error)
        return Unreachable(f"`{self.url}{path}` does not answer: {reason}", reason)


def metrics(text: str) -> dict[str, float]:
    """Prometheus text summed by series name; labels are dropped, unreadable lines left out."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line[0] in "#<" or ("{" in line) != ("}" in line):
            continue
        name = line.split("{", 1)[0].split(" ", 1)[0]
        try:
            value = float(line.rsplit("}", 1)[-1].split()[0] if "}" in line else line.split()[1])
        except (IndexError, ValueError):
            continue
        sums[name] = sums.get(name, 0.0) + value
    return sums


def _hang_up(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _reason(error: Exception) -> str:
    """What went wrong with a connection, in words that do not depend on the library."""
    text = str(error)
    if isinstance(error, ConnectionRefusedError) or "refused" in text:
        return "connection refused"
    if isinstance(error, socket.gaierror) or any(
        word in text for word in ("getaddrinfo", "resolution", "known")
    ):
        return "host name not found"
    if isinstance(error, http.client.IncompleteRead | http.client.RemoteDisconnected | ConnectionResetError):
        return "the answer broke off"
    if isinstance(error, http.client.HTTPException):
        return "the answer is not HTTP"
    return text or type(error).__name__
