"""The HTTP client of every command: the API of ``engine.client`` over httpx.

A whole exchange ends in ``timeout_s``, whatever the server does: a byte a second in the head or the body, an endless
answer, a page that unpacks to gigabytes. Redirects are not followed. A proxy of the environment is used only with
``K3CTL_USE_PROXY=1``. The time that the resolver of this machine takes for a name is its own.
"""

from __future__ import annotations

import os
import threading
import time
import urllib.request
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from k3ctl.engine import client as base
from k3ctl.engine.client import MAX_BYTES, Answer, BadAnswer, HttpError, Unreachable

if TYPE_CHECKING:
    import httpx

SCREEN_S = 2.0
"""For a screen, which is read again at once."""
PATIENT_S = 10.0
"""For a single look: a busy server is slow, not gone."""
USE_PROXY = "K3CTL_USE_PROXY"

__all__ = ["MAX_BYTES", "PATIENT_S", "SCREEN_S", "BadAnswer", "Client", "HttpError", "Unreachable", "fetch"]


class Client(base.Client):
    """One server, for any number of threads; keeps its connections until ``close``."""

    def __init__(
        self, url: str, *, api_key: str | None = None, timeout_s: float = 5.0, max_bytes: int = MAX_BYTES
    ) -> None:
        super().__init__(url, api_key=api_key, timeout_s=timeout_s, max_bytes=max_bytes)
        self._made: httpx.Client | None = None
        self._making = threading.Lock()

    def close(self) -> None:
        """Close the connections."""
        if self._made is not None:
            self._made.close()

    def _exchange(self, path: str, data: bytes | None, timeout_s: float) -> Answer:
        import httpx

        from k3ctl.server import deadline

        end = time.monotonic() + timeout_s
        try:
            with (
                deadline.until(end),
                self._http().stream(
                    "GET" if data is None else "POST",
                    self.url + path,
                    content=data,
                    headers=self.headers(data),
                    timeout=timeout_s,
                ) as response,
            ):
                coding = response.headers.get("content-encoding", "identity")
                body = _read(response.iter_raw(), coding, self._max_bytes + 1)
                location = response.headers.get("location", "")
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, zlib.error) as error:
            late = isinstance(error, httpx.TimeoutException) or time.monotonic() >= end
            raise self.unreachable(path, _plain(error), timeout_s if late else None) from None
        return self.bounded(path, Answer(response.status_code, body, location))

    def _http(self) -> httpx.Client:
        import httpx

        from k3ctl.server import deadline

        with self._making:
            if self._made is None:
                # trust_env here would also read proxies and passwords (.netrc); the transport's reads certificates only
                self._made = httpx.Client(
                    transport=deadline.transport(_proxy(self.url)), trust_env=False, follow_redirects=False
                )
            return self._made


def fetch(address: str, *, timeout_s: float = PATIENT_S, max_bytes: int = MAX_BYTES) -> str:
    """The text behind any ``http(s)`` address; raises ``HttpError``."""
    client = Client(address, timeout_s=timeout_s, max_bytes=max_bytes)
    client.url = address
    try:
        return client.text("")
    finally:
        client.close()


def _read(chunks: Iterable[bytes], coding: str, limit: int) -> bytes:
    """At most ``limit`` bytes of a body; unpacked piece by piece, so that a bomb costs no more than that."""
    body = bytearray()
    if coding in ("gzip", "x-gzip", "deflate"):
        chunks = _unpacked(chunks, limit)
    elif coding != "identity":
        raise ValueError(f"the answer is packed with `{coding}`, which was not asked for")
    for chunk in chunks:
        body += chunk[: limit - len(body)]
        if len(body) >= limit:
            break
    return bytes(body)


def _unpacked(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    unpack = zlib.decompressobj(wbits=47)  # finds out itself whether a gzip or a zlib header stands there
    for chunk in chunks:
        yield unpack.decompress(chunk, limit)
        while unpack.unconsumed_tail:
            yield unpack.decompress(unpack.unconsumed_tail, limit)
    if not unpack.eof:
        raise ValueError("the answer broke off")


def _plain(error: Exception) -> Exception:
    """httpx's errors in words that ``engine.client`` knows."""
    import httpx

    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        return ConnectionResetError(str(error))
    return error


def _proxy(url: str) -> str | None:
    parts = urlsplit(url)
    if os.environ.get(USE_PROXY, "") in ("", "0") or urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)
