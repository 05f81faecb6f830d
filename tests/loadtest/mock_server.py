"""A streaming OpenAI-compatible server for tests: standard library only, loopback only.

It looks like vLLM where the load client looks: ``/health``, ``/v1/models``, ``/v1/chat/completions`` with SSE
and usage, ``/metrics`` and ``/k3/witness``. Speed, errors and lies (short outputs, a restart) are options.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")


@dataclass
class Behaviour:
    """What the mock does; times in seconds."""

    model: str = "k3-tiny"
    ttft_s: float = 0.02
    itl_s: float = 0.004
    tokens_per_chunk: int = 1
    fail_share: float = 0.0
    stop_after: int | None = None
    reasoning_share: float = 0.0
    draft_tokens: int = 0
    witness: bool = True
    specialized_share: float = 1.0
    tokens_per_byte: int = 1
    """What /tokenize says; 1 agrees with the tests' byte tokenizer."""


@dataclass
class State:
    """Counters behind /metrics and /k3/witness."""

    behaviour: Behaviour
    started_at: float = field(default_factory=time.time)
    lock: threading.Lock = field(default_factory=threading.Lock)
    running: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    steps: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    rng: random.Random = field(default_factory=lambda: random.Random(0))


def exposition(state: State) -> str:
    """The part of vLLM's /metrics that k3ctl reads."""
    label = f'{{engine="0",model_name="{state.behaviour.model}"}}'
    lines = [
        f"vllm:num_requests_running{label} {state.running}",
        f"vllm:num_requests_waiting{label} 0",
        f"vllm:prompt_tokens_total{label} {state.prompt_tokens}",
        f"vllm:generation_tokens_total{label} {state.generation_tokens}",
        f"vllm:prefix_cache_queries_total{label} {state.prompt_tokens}",
        f"vllm:prefix_cache_hits_total{label} 0",
        f"vllm:num_preemptions_total{label} 0",
        f"process_start_time_seconds {state.started_at}",
    ]
    if k := state.behaviour.draft_tokens:
        lines += [
            f"vllm:spec_decode_num_drafts_total{label} {state.steps}",
            f"vllm:spec_decode_num_draft_tokens_total{label} {state.steps * k}",
            f"vllm:spec_decode_num_accepted_tokens_total{label} {state.generation_tokens - state.steps}",
        ]
    typed = []
    for line in lines:
        name = line.split("{")[0].split(" ")[0]
        typed += [f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}", line]
    return "\n".join(typed) + "\n"


def witness_table(state: State) -> dict[str, Any]:
    """The witness page of one rank."""
    fast = round(state.steps * state.behaviour.specialized_share)
    rest = state.steps - fast
    steps = [
        {"path": "specialized", "kind": "decode", "mode": "full", "reason": "", "steps": fast},
        {"path": "standard", "kind": "mixed", "mode": "eager", "reason": "prefill-in-batch", "steps": rest},
    ]
    page = {
        "schema": "k3.witness/1",
        "vllm": "0.33.0",
        "rank": 0,
        "started_at": state.started_at,
        "decode_backend": "latency_specialized",
        "steps": [{**step, "rows": step["steps"], "tokens": step["steps"]} for step in steps],
    }
    return {"schema": "k3.witness.table/1", "workers": [page]}


class Handler(BaseHTTPRequestHandler):
    """Routes of the mock."""

    protocol_version = "HTTP/1.1"
    state: State

    def log_message(self, *args: Any) -> None:
        """Silent."""

    def _send(self, body: str, *, status: int = 200, kind: str = "application/json") -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/health":
            self._send("")
        elif self.path == "/v1/models":
            self._send(
                json.dumps(
                    {"object": "list", "data": [{"id": self.state.behaviour.model, "max_model_len": 4096}]}
                )
            )
        elif self.path == "/metrics":
            self._send(exposition(self.state), kind="text/plain; version=0.0.4")
        elif self.path == "/k3/witness" and self.state.behaviour.witness:
            self._send(json.dumps(witness_table(self.state)))
        else:
            self._send('{"error":"not found"}', status=404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self._send(
                json.dumps({"count": len(body["prompt"].encode()) * self.state.behaviour.tokens_per_byte})
            )
            return
        how = self.state.behaviour
        self.state.requests.append({"at": time.time(), "messages": body.get("messages", []), "body": body})
        if self.state.rng.random() < how.fail_share:
            self._send('{"error":{"message":"overloaded","code":503}}', status=503)
            return
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._stream(body)

    def _chunk(self, value: str) -> None:
        data = f"data: {value}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _stream(self, body: dict[str, Any]) -> None:
        how, state = self.state.behaviour, self.state
        prompt = max(1, len(json.dumps(body.get("messages") or body.get("prompt", ""))) // 5)
        wanted = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        wanted = min(wanted, how.stop_after or wanted)
        base = {
            "id": f"chatcmpl-{len(state.requests)}",
            "object": "chat.completion.chunk",
            "model": how.model,
        }
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with state.lock:
            state.running += 1
            state.prompt_tokens += prompt
        try:
            time.sleep(how.ttft_s)
            for done in self._tokens(wanted):
                word = " ".join(state.rng.choice(WORDS) for _ in range(how.tokens_per_chunk)) + " "
                key = "reasoning_content" if done <= wanted * how.reasoning_share else "content"
                choice = {
                    "index": 0,
                    "delta": {key: word},
                    "finish_reason": None if done < wanted else "length",
                }
                self._chunk(json.dumps({**base, "choices": [choice], "usage": _usage(prompt, done)}))
            self._chunk(json.dumps({**base, "choices": [], "usage": _usage(prompt, wanted)}))
            self._chunk("[DONE]")
            self.wfile.write(b"0\r\n\r\n")
        finally:
            with state.lock:
                state.running -= 1

    def _tokens(self, wanted: int) -> Iterator[int]:
        how, state = self.state.behaviour, self.state
        done = 0
        while done < wanted:
            new = min(how.tokens_per_chunk, wanted - done)
            done += new
            with state.lock:
                state.generation_tokens += new
                state.steps += 1
            yield done
            time.sleep(how.itl_s * new)


def _usage(prompt: int, done: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": done, "total_tokens": prompt + done}


class Server(ThreadingHTTPServer):
    """The mock on a free loopback port."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves early is not an error of the mock."""

    def __init__(self, behaviour: Behaviour | None = None, port: int = 0) -> None:
        self.state = State(behaviour or Behaviour())
        handler = type("BoundHandler", (Handler,), {"state": self.state})
        super().__init__(("127.0.0.1", port), handler)

    @property
    def url(self) -> str:
        """Base URL without ``/v1``."""
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextlib.contextmanager
def running(behaviour: Behaviour | None = None) -> Iterator[Server]:
    """A mock server that lives for one ``with`` block."""
    server = Server(behaviour)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main() -> None:
    """Run by hand: ``python tests/loadtest/mock_server.py --port 30000``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--tokens-per-chunk", type=int, default=1)
    parser.add_argument("--fail-share", type=float, default=0.0)
    args = parser.parse_args()
    behaviour = Behaviour(tokens_per_chunk=args.tokens_per_chunk, fail_share=args.fail_share)
    Server(behaviour, args.port).serve_forever()


if __name__ == "__main__":
    main()
