from __future__ import annotations

import json
from pathlib import Path

import pytest

from k3ctl.bundle import redact

FIXTURES = Path(__file__).parents[1] / "fixtures"
ENVIRONMENT = {
    "HF_TOKEN": "hf_local0123456789abcdef",
    "MY_PASSWORD": "correct horse battery",
    "PATH": "/usr/bin",
}
HIDE = redact.redactor(ENVIRONMENT, host="trainer-node-17", user="alice", home="/home/alice")


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrStUvWx", "hf_AbCdEfGhIjKlMnOpQrStUvWx"),
        ("Authorization: Bearer abcdef.123456", "abcdef.123456"),
        ("--api-key s3cr3t-value-1 --port 1", "s3cr3t-value-1"),
        ("--api-key=s3cr3t-value-2", "s3cr3t-value-2"),
        ('{"api_key": "s3cr3t-value-3"}', "s3cr3t-value-3"),
        ("['--api-key', 's3cr3t-value-4']", "s3cr3t-value-4"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI/K7MDENG"),
        ("key AKIAIOSFODNN7EXAMPLE here", "AKIAIOSFODNN7EXAMPLE"),
        ("https://bob:hunter22@proxy.example/x", "bob:hunter22"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", "eyJhbGciOiJIUzI1NiJ9"),
        ("it said correct horse battery twice", "correct horse battery"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----", "MIIE"),
        ("nvapi-0123456789abcdefXYZ", "nvapi-0123456789abcdefXYZ"),
        ("model in /home/alice/models", "alice"),
        ("started on trainer-node-17", "trainer-node-17"),
    ],
)
def test_a_secret_does_not_survive(text: str, secret: str) -> None:
    hidden, count = HIDE.text(text)
    assert secret not in hidden
    assert count >= 1


@pytest.mark.parametrize(
    "text",
    [
        "--tokenizer moonshotai/Kimi-K3 --max-num-batched-tokens 16384",
        '"num_speculative_tokens": 7, "max_completion_tokens": 1000',
        'vllm:generation_tokens_total{engine="0"} 123456789',
        "tokenizer: /models/kimi-k3-tokenizer",
        "prompt_tokens=8000,output_tokens=1000",
        "the token expired yesterday",
        "kind=static,value=42",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert HIDE.text(text) == (text, 0)


REPORT = {
    "time_to_first_token_ms": 28.445005416870117,
    "api_key": "s3cr3t-value-5",
    "backend": {"headers": {"Authorization": "Token s3cr3t-value-6"}},
    "argv": ["serve", "--api-key", "s3cr3t-value-7", "--port", "80000000", "--tokenizer", "/models/kimi-k3"],
    "inter_token_latency_ms": 123456789.5,
}


@pytest.mark.parametrize("indent", [None, 1], ids=["compact", "indented"])
def test_json_stays_json_and_only_secret_strings_change(indent: int | None) -> None:
    hidden, count = HIDE.json(json.dumps(REPORT, indent=indent))
    assert count == 3
    assert "s3cr3t" not in hidden
    found = json.loads(hidden)
    assert found["time_to_first_token_ms"] == REPORT["time_to_first_token_ms"]
    assert found["argv"][-1] == "/models/kimi-k3"


def test_a_report_without_secrets_keeps_every_byte() -> None:
    text = (FIXTURES / "guidellm-result-0.8.1-slim.json").read_text(encoding="utf-8")
    assert HIDE.json(text) == (text, 0)


@pytest.mark.parametrize("name", ["guidellm-events-0.8.1.jsonl", "aiperf-profile_export-0.13.0.jsonl"])
def test_event_logs_without_secrets_keep_every_byte(name: str) -> None:
    text = (FIXTURES / name).read_text(encoding="utf-8")
    assert HIDE.json(text) == (text, 0)


@pytest.mark.parametrize(
    "line",
    [
        "Received request chatcmpl-1: prompt: 'my medical history is long', params: SamplingParams(n=1)",
        'Request body: {"messages": [{"role": "user", "content": "my medical history is long"}]}',
        'prompt_token_ids: [1, 2, 3], prompt: "my medical history is long"',
    ],
)
def test_prompts_that_the_server_logged_are_removed(line: str) -> None:
    hidden, count = HIDE.log(line)
    assert "medical" not in hidden
    assert count >= 1


def test_the_environment_is_an_allow_list() -> None:
    shown = redact.allowed({**ENVIRONMENT, "VLLM_API_KEY": "x" * 20, "VLLM_USE_V2": "1"}, ("VLLM_", "HF_"))
    assert shown == {"HF_TOKEN": redact.MASK, "VLLM_API_KEY": redact.MASK, "VLLM_USE_V2": "1"}


def test_redaction_is_stable() -> None:
    once, _ = HIDE.text("--api-key s3cr3t-value-1 HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrStUvWx")
    assert HIDE.text(once) == (once, 0)
