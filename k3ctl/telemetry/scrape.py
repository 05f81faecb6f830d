"""Fetch a page over HTTP, with limits on time and size: the only module here that opens a socket."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from k3ctl.errors import UsageError
from k3ctl.telemetry.engines import PREFIX, WANTED
from k3ctl.telemetry.prometheus import Page, parse

if TYPE_CHECKING:
    import httpx

DEADLINE_S = 2.0
"""For a screen, which is read again at once."""
PATIENT_S = 10.0
"""For a single look: a busy server is slow, not gone."""
MAX_BYTES = 8 << 20


class FetchError(Exception):
    """The page could not be fetched; the text says why, for people."""


def base_url(text: str) -> str:
    """``host:port`` or any URL of the server, as its base URL. Raises UsageError when it is neither."""
    candidate = text.strip() if "://" in text else f"http://{text.strip()}"
    try:
        parts = urlsplit(candidate)
        port = parts.port
    except ValueError as error:
        raise UsageError(
            f"`{text}` is not a server address: {error}", hint="for example `http://127.0.0.1:8000`"
        ) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or any(c.isspace() for c in parts.netloc):
        raise UsageError(f"`{text}` is not a server address", hint="for example `http://127.0.0.1:8000`")
    path = parts.path.rstrip("/").removesuffix("/metrics").removesuffix("/v1")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{path}"


class Fetcher:
    """An HTTP client for polling: keeps its connection, never uses a proxy, gives up after ``deadline_s``."""

    def __init__(self, deadline_s: float = DEADLINE_S, max_bytes: int = MAX_BYTES) -> None:
        self._deadline_s = deadline_s
        self._max_bytes = max_bytes
        self._client: httpx.Client | None = None

    def get(self, url: str) -> bytes:
        """The body of a 200 answer. Raises FetchError."""
        import httpx

        if self._client is None:
            self._client = httpx.Client(timeout=self._deadline_s, trust_env=False, follow_redirects=False)
        end = time.monotonic() + self._deadline_s
        body = bytearray()
        try:
            with self._client.stream("GET", url) as answer:
                if answer.status_code != 200:
                    raise FetchError(f"HTTP {answer.status_code} {answer.reason_phrase}".rstrip())
                for chunk in answer.iter_bytes():
                    body += chunk
                    if len(body) > self._max_bytes:
                        raise FetchError(f"page larger than {self._max_bytes >> 20} MiB")
                    if time.monotonic() > end:
                        raise FetchError(f"no complete answer within {self._deadline_s:g} s")
        except httpx.TimeoutException as error:
            raise FetchError(f"no answer within {self._deadline_s:g} s") from error
        except httpx.RemoteProtocolError as error:
            raise FetchError("the answer broke off") from error
        except httpx.ConnectError as error:
            raise FetchError(_connect_reason(error)) from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise FetchError(str(error) or type(error).__name__) from error
        return bytes(body)

    def metrics(self, base: str) -> Page:
        """The server's metrics page. Raises FetchError, or PageError when it is something else."""
        return parse(self.get(f"{base}/metrics"), WANTED, required_prefix=PREFIX)

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()


def _connect_reason(error: Exception) -> str:
    text = str(error)
    if "refused" in text:
        return "connection refused"
    if "Name or service not known" in text or "getaddrinfo" in text or "resolution" in text:
        return "host name not found"
    return text or "cannot connect"
