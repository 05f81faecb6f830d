"""Servers that misbehave cost a bounded time and a bounded memory, give one sentence, and get no key they should not.

Both transports, httpx's of the commands and the standard library's of the supervisor, keep the same promises.
"""

from __future__ import annotations

import gzip
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from k3ctl.engine import client as plain
from k3ctl.server import client as commands

PAGE = b'vllm:num_requests_running{engine="0"} 1.0\n'


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(BrokenPipeError, ConnectionResetError):
                answer(self)

        do_POST = do_GET

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


def drip_head(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    for _ in range(100):
        handler.wfile.write(b"a")
        time.sleep(0.1)


def only_informational(handler: BaseHTTPRequestHandler) -> None:
    for _ in range(100):
        handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.1)


def endless_head(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(1 << 16):
        handler.wfile.write(b"X-%d: %s\r\n" % (number, b"a" * 512))


def packed(body: bytes, coding: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Encoding", coding)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def endless_bomb(handler: BaseHTTPRequestHandler) -> None:
    """Ten GiB of zeros in ten MB."""
    handler.send_response(200)
    handler.send_header("Content-Encoding", "gzip")
    handler.end_headers()
    packer = zlib.compressobj(wbits=31)
    for _ in range(640):
        handler.wfile.write(packer.compress(bytes(16 << 20)))


CLIENTS = pytest.mark.parametrize("kind", [commands.Client, plain.Client], ids=["httpx", "standard library"])
Kind = Callable[..., plain.Client]


@CLIENTS
@pytest.mark.parametrize(
    ("answer", "error", "reason"),
    [
        (lambda h: send(h, b"busy", 503), plain.BadAnswer, "HTTP 503"),
        (lambda h: send(h, b"", 302), plain.BadAnswer, "HTTP 302"),
        (lambda h: send(h, PAGE, length=10_000), plain.Unreachable, "broke off"),
        (lambda h: h.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n"), plain.Unreachable, ""),
        (lambda h: None, plain.Unreachable, "broke off"),
        (flood, plain.BadAnswer, "larger than 1 MiB"),
        (endless_head, plain.Unreachable, ""),
        (drip, plain.Unreachable, "within 0.5 s"),
        (drip_head, plain.Unreachable, "within 0.5 s"),
        (only_informational, plain.Unreachable, "within 0.5 s"),
        (hang, plain.Unreachable, "within 0.5 s"),
    ],
    ids=[
        "503", "redirect", "half-response", "another-protocol", "hangs-up", "20-MB-page", "endless-head",
        "drips", "drips-its-head", "only-informational-answers", "hangs",
    ],
)  # fmt: skip
def test_a_bad_endpoint_gives_one_sentence_in_time(
    kind: Kind, answer: Callable[[BaseHTTPRequestHandler], None], error: type[plain.HttpError], reason: str
) -> None:
    with serving(answer) as url:
        start = time.monotonic()
        limit_s = 0.5 if "within" in reason else 10.0  # only what never ends is waited for
        with pytest.raises(error) as caught:
            kind(url, timeout_s=limit_s, max_bytes=1 << 20).body("/metrics")
        assert time.monotonic() - start < limit_s + 0.9
    assert reason in caught.value.reason
    assert "\n" not in caught.value.message


@CLIENTS
def test_a_page_that_is_too_large_is_refused_when_the_limit_is_reached_not_when_it_ends(kind: Kind) -> None:
    def flood_and_hang(handler: BaseHTTPRequestHandler) -> None:
        flood(handler)
        handler.wfile.flush()
        time.sleep(6)

    with serving(flood_and_hang) as url, pytest.raises(plain.BadAnswer, match="larger than 8 MiB"):
        kind(url, timeout_s=5).body("/metrics")


BOMB = bytes(64 << 20)


@pytest.mark.parametrize(
    ("bomb", "limit_bytes"),
    [
        (packed(gzip.compress(BOMB), "gzip"), 6 << 20),
        (packed(zlib.compress(BOMB), "deflate"), 6 << 20),
        (endless_bomb, 48 << 20),  # made by the server's thread, 16 MiB at a time
    ],
    ids=["gzip", "deflate", "endless"],
)
def test_a_page_that_unpacks_to_gigabytes_costs_a_few_megabytes(
    bomb: Callable[[BaseHTTPRequestHandler], None], limit_bytes: int
) -> None:
    import tracemalloc

    with serving(bomb) as url:
        tracemalloc.start()
        try:
            with pytest.raises(plain.BadAnswer, match="larger than 1 MiB"):
                commands.Client(url, timeout_s=5, max_bytes=1 << 20).body("/metrics")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < limit_bytes


def test_a_packed_page_is_read_and_a_broken_one_refused() -> None:
    whole = gzip.compress(PAGE)
    with serving(packed(whole, "gzip")) as url:
        assert commands.Client(url).body("/metrics") == PAGE
    for body, coding in ((whole[:-12], "gzip"), (b"no gzip", "gzip"), (PAGE, "br"), (PAGE, "zstd")):
        with serving(packed(body, coding)) as url, pytest.raises(plain.Unreachable):
            commands.Client(url).body("/metrics")


@CLIENTS
def test_the_key_never_follows_a_redirect_to_another_host(kind: Kind) -> None:
    seen: list[str | None] = []

    def elsewhere(handler: BaseHTTPRequestHandler) -> None:
        seen.append(handler.headers.get("Authorization"))
        send(handler, b"{}")

    with serving(elsewhere) as other:

        def redirect(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(307)
            handler.send_header("Location", f"{other}/v1/models")
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        with serving(redirect) as url:
            client = kind(url, api_key="the-key")
            for call in (lambda: client.json("/v1/models"), lambda: client.json("/v1/completions", {"a": 1})):
                with pytest.raises(plain.BadAnswer, match="redirects to") as caught:
                    call()
                assert caught.value.hint is not None
    assert seen == []


@CLIENTS
def test_the_key_reaches_the_server_that_was_named(kind: Kind) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        send(handler, f'{{"key": "{handler.headers.get("Authorization")}"}}'.encode())

    with serving(answer) as url:
        assert kind(f"{url}/v1/", api_key="a").json("/v1/models") == {"key": "Bearer a"}


@CLIENTS
def test_nobody_listening_is_connection_refused(kind: Kind) -> None:
    with pytest.raises(plain.Unreachable) as caught:
        kind("http://127.0.0.1:9", timeout_s=0.5).body("/metrics")
    assert caught.value.reason == "connection refused"


@CLIENTS
def test_a_host_that_does_not_exist_is_said_so(kind: Kind) -> None:
    with pytest.raises(plain.Unreachable) as caught:
        kind("http://no-such-host.invalid:8000", timeout_s=2).body("/metrics")
    assert caught.value.reason == "host name not found"


@CLIENTS
def test_a_proxy_in_the_environment_is_not_used(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serving(lambda h: send(h, PAGE)) as url:
        assert kind(url).body("/metrics") == PAGE


def test_a_proxy_is_used_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def proxy(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        send(handler, PAGE)

    with serving(proxy) as url:
        monkeypatch.setenv("http_proxy", url)
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.setenv("K3CTL_USE_PROXY", "1")
        assert commands.Client("http://192.0.2.1:8000", timeout_s=2).body("/metrics") == PAGE
    assert asked == ["http://192.0.2.1:8000/metrics"]


def test_one_client_serves_many_threads_within_their_own_times() -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/slow":
            time.sleep(0.6)
        send(handler, PAGE)

    with serving(answer) as url:
        client = commands.Client(url)
        late: list[str] = []

        def ask(path: str, timeout_s: float) -> None:
            try:
                client.body(path, timeout_s=timeout_s)
            except plain.Unreachable:
                late.append(path)

        threads = [threading.Thread(target=ask, args=("/slow", 0.2 if n % 2 else 60.0)) for n in range(20)]
        threads += [threading.Thread(target=ask, args=("/fast", 60.0)) for _ in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert late == ["/slow"] * 10


@CLIENTS
@pytest.mark.parametrize("body", [b"", b"[" * 200_000, b"\xff\xfe", b"<html>", b'{"a": '])
def test_what_is_no_json_is_a_bad_answer(kind: Kind, body: bytes) -> None:
    with serving(lambda h: send(h, body)) as url, pytest.raises(plain.BadAnswer):
        kind(url).json("/v1/models")
