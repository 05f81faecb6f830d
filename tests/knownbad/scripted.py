"""A tiny OpenAI server over the toy model: what a sound server answers, for tests that must not wait for an engine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.knownbad.toy import Token, Toy, arguments, instance

MODEL = "toy"
FORMS = {"regex": "1234-10", "grammar": "set red to 42"}
"""What is answered to the forms that the checks ask for."""
PIECE = 3
"""Characters in a piece of a stream."""


class Scripted(ThreadingHTTPServer):
    """``asked``: every body, as it came; ``hung_up``: streams that the client left early."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, toy: Toy, *, step_s: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.toy, self.step_s = toy, step_s
        self.asked: list[dict[str, Any]] = []
        self.hung_up = 0
        self.generated = 0
        self.prompted = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


@contextmanager
def serve(toy: Toy | None = None, *, step_s: float = 0.0) -> Iterator[Scripted]:
    server = Scripted(toy or Toy(), step_s=step_s)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        pages = {
            "/health": "",
            "/v1/models": json.dumps({"data": [{"id": MODEL, "max_model_len": 4096}]}),
            "/metrics": metrics(self.server),
            "/k3/witness": json.dumps(witness(self.server)),
        }
        self.whole(200 if path in pages else 404, pages.get(path, "{}"))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(body)
        prompt = prompt_of(body)
        answer = said(self.server.toy, body, prompt, chat="chat" in self.path)
        self.server.prompted += len(prompt)
        self.server.generated += counted(*answer)
        if body.get("stream"):
            self.stream(body, *answer)
        else:
            usage = {"prompt_tokens": len(prompt), "completion_tokens": counted(*answer)}
            choices = [whole_choice(body, *answer, prompt_logprobs(self.server.toy, body, prompt))]
            self.whole(200, json.dumps({"model": MODEL, "choices": choices, "usage": usage}))

    def whole(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(
        self, body: Mapping[str, Any], tokens: list[Token], finish: str, extra: dict[str, Any]
    ) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            for choice in piece_choices(body, tokens, finish, extra):
                self.event(json.dumps({"model": MODEL, "choices": [choice]}))
                time.sleep(self.server.step_s)
            usage = {
                "prompt_tokens": len(prompt_of(body)),
                "completion_tokens": counted(tokens, finish, extra),
            }
            if (body.get("stream_options") or {}).get("include_usage"):
                self.event(json.dumps({"model": MODEL, "choices": [], "usage": usage}))
            self.event("[DONE]")
        except OSError:
            self.server.hung_up += 1
        self.close_connection = True

    def event(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()


def prompt_of(body: Mapping[str, Any]) -> str:
    if "messages" in body:
        return "".join(f"<{m['role']}>{m.get('content') or ''}" for m in body["messages"]) + "<assistant>"
    prompt = body["prompt"]
    return prompt if isinstance(prompt, str) else "".join(map(chr, prompt))


def said(
    toy: Toy, body: Mapping[str, Any], prompt: str, *, chat: bool
) -> tuple[list[Token], str, dict[str, Any]]:
    """Tokens, finish reason and what else the message holds."""
    form, structured = body.get("response_format") or {}, body.get("structured_outputs") or {}
    if form.get("type") == "json_schema":
        return by_rote(json.dumps(instance(form["json_schema"]["schema"])))
    if structured:
        return by_rote(structured["choice"][0] if "choice" in structured else FORMS[next(iter(structured))])
    tools, choice = body.get("tools") or [], body.get("tool_choice")
    if chat and tools and choice not in (None, "none"):
        named = choice["function"]["name"] if isinstance(choice, dict) else None
        wanted = [tool for tool in tools if named in (None, tool["function"]["name"])]
        wanted *= 3 if body.get("parallel_tool_calls") else 1
        return [], "tool_calls", {"tool_calls": [call(place, tool) for place, tool in enumerate(wanted)]}
    tokens, finish = toy.generate(prompt, body)
    return tokens, finish, {}


def counted(tokens: list[Token], _: str, extra: dict[str, Any]) -> int:
    return len(tokens) + sum(len(one["function"]["arguments"]) for one in extra.get("tool_calls", []))


def by_rote(text: str) -> tuple[list[Token], str, dict[str, Any]]:
    return [Token(char, 0.0, ((char, 0.0),)) for char in text], "stop", {}


def call(place: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": tool["function"]["name"], "arguments": arguments(tool)}
    return {"id": f"call-{place}", "index": place, "type": "function", "function": function}


def prompt_logprobs(toy: Toy, body: Mapping[str, Any], prompt: str) -> dict[str, Any]:
    """What the model finds likeliest at every place of the prompt, and its own token there."""
    if body.get("prompt_logprobs") is None:
        return {}
    told: list[Any] = [None]
    for place in range(1, len(prompt)):
        top = toy.likeliest(prompt[:place], "")
        best = top[: int(body["prompt_logprobs"])] + [one for one in top if one[0] == prompt[place]]
        told.append({str(ord(char)): {"logprob": value} for char, value in best})
    return {"prompt_logprobs": told}


def whole_choice(
    body: Mapping[str, Any], tokens: list[Token], finish: str, extra: dict[str, Any], read: dict[str, Any]
) -> dict[str, Any]:
    text = "".join(token.text for token in tokens)
    thought, content = split(text)
    rest = {"index": 0, "finish_reason": finish, "logprobs": logprobs(body, tokens)}
    if finish == "stop" and body.get("stop"):
        rest["stop_reason"] = body["stop"] if isinstance(body["stop"], str) else body["stop"][0]
    if "prompt" in body:
        return {"text": text, **rest, **read}
    calls = [{k: v for k, v in entry.items() if k != "index"} for entry in extra.get("tool_calls", [])]
    message = {"role": "assistant", "content": content or None, "reasoning": thought, "tool_calls": calls}
    return {"message": message, **rest}


def split(text: str) -> tuple[str | None, str]:
    """Thinking and answer of a text by rote; ``]]`` stands for the marker that ends the thinking."""
    thought, marker, content = text.partition("]]")
    return (thought, content) if marker else (None, text)


def piece_choices(
    body: Mapping[str, Any], tokens: list[Token], finish: str, extra: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    if "messages" in body:
        yield {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    for entry in extra.get("tool_calls", []):
        yield {"index": 0, "delta": {"tool_calls": [entry]}, "finish_reason": None}
    thought, _ = split("".join(token.text for token in tokens))
    place, past = 0, 0
    while place < len(tokens):
        piece = tokens[place : place + PIECE]
        place += len(piece)
        if thought is not None and past < len(thought):
            piece = piece[: len(thought) - past]
            place = past + len(piece)
            name = "reasoning"
        elif thought is not None and past == len(thought):
            place = past = past + 2
            continue
        else:
            name = "content"
        past += len(piece)
        text = "".join(token.text for token in piece)
        rest = {"index": 0, "finish_reason": None, "logprobs": logprobs(body, piece)}
        yield ({"text": text} if "prompt" in body else {"delta": {name: text}}) | rest
    yield ({"text": ""} if "prompt" in body else {"delta": {}}) | {"index": 0, "finish_reason": finish}


def logprobs(body: Mapping[str, Any], tokens: list[Token]) -> dict[str, Any] | None:
    if body.get("logprobs") in (None, False):
        return None
    if "prompt" in body:
        most = int(body["logprobs"])
        named = (lambda char: f"token_id:{ord(char)}") if body.get("return_tokens_as_token_ids") else str
        tops = [dict(token.top[:most]) | {token.text: token.logprob} for token in tokens]
        return {
            "tokens": [named(token.text) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{named(char): value for char, value in top.items()} for top in tops],
        }
    most = int(body.get("top_logprobs") or 0)
    return {
        "content": [
            {
                "token": token.text,
                "logprob": token.logprob,
                "top_logprobs": [{"token": char, "logprob": value} for char, value in token.top[:most]],
            }
            for token in tokens
        ]
    }


def metrics(server: Scripted) -> str:
    drafts = server.generated // 2
    lines = {
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "vllm:generation_tokens_total": server.generated,
        "vllm:prompt_tokens_total": server.prompted,
        "vllm:spec_decode_num_drafts_total": drafts,
        "vllm:spec_decode_num_draft_tokens_total": 3 * drafts,
        "vllm:spec_decode_num_accepted_tokens_total": drafts,
    }
    page = [f'{name}{{engine="0",model_name="{MODEL}"}} {float(value)}' for name, value in lines.items()]
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    page += [f'{name}{{engine="0",model_name="{MODEL}",position="{i}"}} {drafts / (i + 2)}' for i in range(3)]
    labels = 'kind="decode",mode="full",path="specialized",rank="0",reason=""'
    page += [f"k3_steps_total{{{labels}}} {float(server.generated)}"]
    return "\n".join(page) + "\n"


def witness(server: Scripted) -> dict[str, Any]:
    steps = server.generated
    row = {"path": "specialized", "kind": "decode", "mode": "full", "reason": "", "steps": steps}
    page = {
        "rank": 0,
        "vllm": "0.33.0",
        "runtime": "0",
        "known_build": True,
        "platform": "cuda",
        "decode_backend": "latency_specialized",
        "max_rows": 64,
        "query_len": 1,
        "workers": 1,
        "pid": 1,
        "started_at": 1.0,
        "steps": [row | {"rows": steps, "tokens": steps}],
    }
    return {"schema": "k3.witness.table/1", "workers": [page]}
