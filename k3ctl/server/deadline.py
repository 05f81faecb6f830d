"""A network under httpx whose every wait ends with the exchange that it belongs to.

httpx bounds single waits: a server that sends a byte a second, in the head or the body, is never late for any of them.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpcore
import httpx

_END: ContextVar[float] = ContextVar("end of the exchange, on the monotonic clock")


@contextmanager
def until(end: float) -> Iterator[None]:
    """Waits of this thread end at ``end``, on the monotonic clock, with httpx's ReadTimeout."""
    token = _END.set(end)
    try:
        yield
    finally:
        _END.reset(token)


def transport(proxy: str | None) -> httpx.HTTPTransport:
    """Any number of connections, through ``proxy`` where there is one."""
    made = httpx.HTTPTransport(
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=20), proxy=proxy
    )
    # httpx has no setting for it; a test that drips a head fails when this no longer holds
    made._pool._network_backend = _Backend()
    return made


def _left(timeout: float | None) -> float:
    left = _END.get(float("inf")) - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("the time is over")
    return left if timeout is None else min(timeout, left)


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, _left(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, _left(timeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Backend(httpcore.SyncBackend):
    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        return _Stream(super().connect_tcp(host, port, _left(timeout), local_address, socket_options))
