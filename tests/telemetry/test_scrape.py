"""Endpoints that misbehave cost two seconds at most and give one sentence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from k3ctl.errors import UsageError
from k3ctl.telemetry.prometheus import PageError
from k3ctl.telemetry.scrape import Fetcher, FetchError, base_url

PAGE = b'vllm:num_requests_running{engine="0"} 1.0\n'


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(BrokenPipeError, ConnectionResetError):
                answer(self)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, length: int | None = None) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body)


def drip(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(100):
        handler.wfile.write(b"#\n")
        time.sleep(0.1)


def flood(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(20):
        handler.wfile.write(b"# x\n" * (1 << 18))


def hang(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(1.5)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (lambda h: send(h, b"<html>bad gateway</html>"), PageError, "HTML"),
        (lambda h: send(h, b"busy", 503), FetchError, "HTTP 503"),
        (lambda h: send(h, b"", 302), FetchError, "HTTP 302"),
        (lambda h: send(h, PAGE, length=10_000), FetchError, "broke off"),
        (flood, FetchError, "larger than 8 MiB"),
        (drip, FetchError, "within 0.5 s"),
        (hang, FetchError, "within 0.5 s"),
    ],
    ids=["html", "503", "redirect", "half-response", "20-MB-page", "drips", "hangs"],
)
def test_a_bad_endpoint_gives_one_sentence_in_time(
    answer: Callable[[BaseHTTPRequestHandler], None], error: type[Exception], message: str
) -> None:
    with serving(answer) as url:
        start = time.monotonic()
        with pytest.raises(error, match=message):
            Fetcher(deadline_s=0.5).metrics(url)
        assert time.monotonic() - start < 1.4


def test_nobody_listening_is_connection_refused() -> None:
    with pytest.raises(FetchError, match="connection refused"):
        Fetcher(deadline_s=0.5).metrics("http://127.0.0.1:9")


def test_a_proxy_in_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving(lambda h: send(h, PAGE)) as url:
        assert Fetcher().metrics(url).series


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://host:8000/", "http://host:8000"),
        ("http://host:8000/metrics", "http://host:8000"),
        ("https://host/v1", "https://host"),
        ("https://gw/k3/metrics", "https://gw/k3"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_any_address_of_the_server_names_its_base(text: str, expected: str) -> None:
    assert base_url(text) == expected


@pytest.mark.parametrize(
    "text", ["", "http://", "ftp://x", "http://h:99999", "http://a b:1", "http://h:eight"]
)
def test_what_is_no_address_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="server address"):
        base_url(text)
