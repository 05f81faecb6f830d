"""What a client of the served tiny model gets: chat, streaming, JSON schema, our routes and metrics."""

from __future__ import annotations

import json
import subprocess

import httpx

from tests.e2e.conftest import Server, post

SCHEMA = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean"},
        "color": {"enum": ["red", "green"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["ok", "color", "n"],
    "additionalProperties": False,
}


def chat(server: Server, **extra: object) -> dict:
    body = {"model": "k3-tiny", "messages": [{"role": "user", "content": "What is a class?"}], **extra}
    return dict(post(f"{server.url}/v1/chat/completions", body))


def test_greedy_chat_is_repeatable_and_seeds_differ(server: Server) -> None:
    def text(**extra: object) -> str:
        return str(chat(server, max_tokens=16, **extra)["choices"][0]["message"]["content"])

    assert text(temperature=0) == text(temperature=0)
    assert text(temperature=1.0, seed=7) == text(temperature=1.0, seed=7)
    assert text(temperature=1.0, seed=7) != text(temperature=1.0, seed=8)


def test_structured_output_is_valid_json_of_the_schema(server: Server) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
    for seed in range(4):
        answer = chat(server, max_tokens=200, temperature=1.0, seed=seed, response_format=form)
        value = json.loads(answer["choices"][0]["message"]["content"])
        assert set(value) == {"ok", "color", "n"}
        assert value["color"] in {"red", "green"}
        assert 0 <= value["n"] <= 99


def test_curl_streams_a_chat_completion(server: Server) -> None:
    body = {
        "model": "k3-tiny",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 24,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    command = ["curl", "-sN", "--noproxy", "*", f"{server.url}/v1/chat/completions"]
    command += ["-H", "content-type: application/json", "-d", json.dumps(body)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    events = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[-1]["usage"]["completion_tokens"] == 24
    assert sum(bool(c["choices"]) for c in chunks) >= 3  # several chunks, not one


def test_witness_route_metrics_and_page_tell_the_same(server: Server) -> None:
    chat(server, max_tokens=8, temperature=0, ignore_eos=True)
    table = httpx.get(f"{server.url}/k3/witness", trust_env=False).json()
    assert table["schema"] == "k3.witness.table/1"
    (page,) = table["workers"]
    assert page["decode_backend"] == "latency_specialized"
    assert page["known_build"] is True
    steps = {(s["path"], s["kind"], s["reason"]): s["steps"] for s in page["steps"]}
    assert steps["specialized", "decode", ""] > 0
    for route in ("/k3/metrics", "/metrics"):
        text = httpx.get(server.url + route, trust_env=False).text
        line = 'k3_steps_total{kind="decode",mode="eager",path="specialized",rank="0",reason=""}'
        found = [
            row
            for row in text.splitlines()
            if row.startswith("k3_steps_total{") and 'path="specialized"' in row
        ]
        assert found, f"{route}: no {line}"
        assert not any(row.startswith("vllm:k3") for row in text.splitlines())
    assert (server.run_dir / "witness" / "rank0.json").exists()
