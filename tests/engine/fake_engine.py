"""Imitates vLLM from the outside: its processes, its log, its HTTP routes. Started like `vllm serve`.

Behaviour is chosen by FAKE_* variables:
  FAKE_START_S     seconds until it listens (default 0.3)
  FAKE_DIE         "start": exits 1 with a traceback while loading
  FAKE_SHM         name of a shared-memory segment that the engine core makes
  FAKE_HUNG        "1": /health is 200, requests never answer
  FAKE_STUBBORN    "1": every process ignores SIGTERM
  FAKE_LOG_MB      megabytes of log to print after the start
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STATE = {"generated": 0.0, "running": 0}


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def log(who: str, text: str, level: str = "INFO") -> None:
    stamp = time.strftime("%m-%d %H:%M:%S")
    say(f"({who} pid={os.getpid()}) {level} {stamp} [fake.py:1] {text}\n")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def answer(self, body: str, status: int = 200, kind: str = "application/json") -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/health":
            return self.answer("")
        if self.path == "/metrics" and os.environ.get("FAKE_HTML"):
            return self.answer("<html><body>please log in</body></html>", kind="text/html")
        if self.path == "/metrics":
            return self.answer(
                f'vllm:num_requests_running{{engine="0"}} {STATE["running"]}\n'
                f'vllm:num_requests_waiting{{engine="0"}} 0.0\n'
                f'vllm:generation_tokens_total{{engine="0"}} {STATE["generated"]}\n'
                f'vllm:prompt_tokens_total{{engine="0"}} 0.0\n',
                kind="text/plain",
            )
        return self.answer('{"detail":"Not Found"}', 404)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        asked = json.loads(self.rfile.read(length) or b"{}")
        key = os.environ.get("VLLM_API_KEY")
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            return self.answer('{"error":"Unauthorized"}', 401)
        STATE["running"] += 1
        while Path(os.environ.get("FAKE_HUNG_FILE", "/nonexistent")).exists() or os.environ.get("FAKE_HUNG"):
            time.sleep(0.05)
        time.sleep(float(asked.get("fake_s", 0)))
        STATE["running"] -= 1
        STATE["generated"] += asked.get("max_tokens", 1)
        return self.answer(json.dumps({"choices": [{"text": "x", "index": 0}]}))


def engine_core() -> None:
    """The child: holds a segment, and a worker of its own."""
    stubborn()
    name = os.environ.get("FAKE_SHM")
    if name:
        with Path("/dev/shm", name).open("w+b") as file:
            file.truncate(4096)
            held = mmap.mmap(file.fileno(), 4096)
            held[0:4] = b"fake"
            globals()["held"] = held
    worker = subprocess.Popen([sys.executable, __file__, "worker"])
    if not os.environ.get("FAKE_STUBBORN"):
        signal.signal(signal.SIGTERM, lambda *_: (worker.terminate(), os._exit(0)))
    os.write(int(sys.argv[2]), b".")
    log("EngineCore", "init engine (profile, create kv cache, warmup model) took 0.10 s")
    worker.wait()


def worker() -> None:
    stubborn()
    log("Worker", "Model loading took 0.01 GiB memory and 0.1 seconds")
    while True:
        time.sleep(3600)


def stubborn() -> None:
    if os.environ.get("FAKE_STUBBORN"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def option(name: str, default: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def serve() -> None:
    stubborn()
    log("APIServer", "version 0.33.0")
    log("APIServer", "Resolved architecture: KimiK3ForConditionalGeneration")
    if os.environ.get("FAKE_DIE") == "start":
        log("EngineCore", "ValueError: No available memory for the cache blocks.", "ERROR")
        sys.exit(1)
    reading, writing = os.pipe()
    core = subprocess.Popen([sys.executable, __file__, "core", str(writing)], pass_fds=(writing,))
    os.close(writing)
    if "--headless" in sys.argv:
        sys.exit(core.wait())
    for k in range(1, 4):
        log(
            "Worker_TP0",
            f"Loading safetensors checkpoint shards: {33 * k}% Completed | {k}/3 [00:01<00:0{3 - k}, 1s/it]",
        )
        time.sleep(float(os.environ.get("FAKE_START_S", "0.3")) / 3)

    def ended(*_: object) -> None:
        if not os.environ.get("FAKE_STUBBORN"):
            STATE["stopping"] = 1
            core.terminate()
            os._exit(0)

    signal.signal(signal.SIGTERM, ended)
    os.read(reading, 1)
    # vLLM's front end ends when its engine core dies
    threading.Thread(
        target=lambda: (core.wait(), os._exit(0 if STATE.get("stopping") else 1)), daemon=True
    ).start()
    server = ThreadingHTTPServer((option("--host", "127.0.0.1"), int(option("--port", "8000"))), Handler)
    log("APIServer", f"Starting vLLM server on http://127.0.0.1:{server.server_port}")
    for _ in range(int(os.environ.get("FAKE_LOG_MB", "0"))):
        say(("x" * 1023 + "\n") * 1024)
    server.serve_forever()


if __name__ == "__main__":
    {"core": engine_core, "worker": worker}.get(sys.argv[1], serve)()
