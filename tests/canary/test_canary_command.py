"""`k3ctl canary` against servers that are sound, broken in one way each, or not there."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from k3ctl.canary.prompts import PROMPTS
from k3ctl.cli import main

Answer = Callable[[str], dict[str, Any]]
RIGHT = (
    "7753",
    "391",
    "Canberra",
    "maerts",
    "1 2 3 4 5 6 7 8 9 10 11 12",
    "violet-otter-58-kelvin-harbor-203",
)
RIGHT += ("fromage", "apple, fig, lemon, pear", "10", "nickel")


def message(text: str, finish: str = "stop", **more: Any) -> dict[str, Any]:
    choice = {"message": {"role": "assistant", "content": text, **more}, "finish_reason": finish}
    return {"choices": [choice], "usage": {"completion_tokens": max(1, len(text.split()))}}


def said(prompt: str) -> str:
    return next(text for p, text in zip(PROMPTS, RIGHT, strict=True) if p.text == prompt)


def right(prompt: str) -> dict[str, Any]:
    return message(said(prompt))


@contextmanager
def server(answer: Answer, *, refuse_logprobs: bool = False) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def reply(self, status: int, data: Any) -> None:
            body = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            known = self.path == "/v1/models"
            self.reply(200 if known else 404, {"data": [{"id": "kimi-k3"}]} if known else {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if refuse_logprobs and "logprobs" in body:
                return self.reply(400, {"error": {"message": "logprobs are off"}})
            return self.reply(200, answer(body["messages"][0]["content"]))

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        http.server_close()


def outcome(capsys: pytest.CaptureFixture[str], url: str, *options: str) -> tuple[int, dict[str, Any]]:
    code = main(["canary", "--url", url, "--json", *options])
    return code, json.loads(capsys.readouterr().out)["data"]


@pytest.mark.parametrize("refuse", [False, True], ids=["logprobs", "logprobs refused"])
def test_a_sound_server_is_healthy(capsys: pytest.CaptureFixture[str], refuse: bool) -> None:
    with server(right, refuse_logprobs=refuse) as url:
        code, data = outcome(capsys, url)
    assert (code, data["verdict"], data["content_judged"]) == (0, "healthy", True)


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (lambda prompt: message("!" * 300, "length"), "one token over and over"),
        (lambda prompt: message("so it is then " * 60, "length"), "the same passage over and over"),
        (lambda prompt: message("hm </think> " + said(prompt)), "think marker"),
        (lambda prompt: message("", "length"), "tokens without text"),
        (lambda prompt: {"choices": []}, "no answer"),
        (lambda prompt: message("Paris"), "not the right answer"),
    ],
    ids=["flood", "loop", "marker", "empty", "no completion", "wrong"],
)
def test_each_way_to_be_broken_is_named_and_never_exits_0(
    capsys: pytest.CaptureFixture[str], broken: Answer, fault: str
) -> None:
    with server(broken) as url:
        code, data = outcome(capsys, url)
    assert code != 0 and data["verdict"] != "healthy"
    assert any(fault in found["fault"] for prompt in data["prompts"] for found in prompt["faults"])


def test_one_flooded_answer_of_ten_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    def answer(prompt: str) -> dict[str, Any]:
        return message("!" * 200) if prompt == PROMPTS[6].text else right(prompt)

    with server(answer) as url:
        code, data = outcome(capsys, url)
        assert (code, data["verdict"]) == (1, "corrupt")
        assert outcome(capsys, url, "--shape-only")[0] == 1


def test_the_shape_alone_says_that_answers_were_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    with server(right) as url:
        code, data = outcome(capsys, url, "--shape-only")
    assert (code, data["verdict"]) == (0, "unknown") and "not judged" in data["statement"]


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["canary", "--url", "http://127.0.0.1:9"]) == 4
    assert "does not answer" in capsys.readouterr().err
