from __future__ import annotations

import json
from pathlib import Path

import pytest

from k3ctl import redact

FIXTURES = Path(__file__).parent / "fixtures"
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
        "docker run -u 1000:1000 image",
        "the bearer of the news, in pw files",
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


# planted values stand in no environment: only their shape or their place gives them away
LINES = {
    "URL with user": ("https://bob:{}@proxy.example/x", "pa55"),
    "URL without user": ("redis://:{}@cache:6379/0", "pw"),
    "URL with a token alone": ("https://{}@git.example/x.git", "t0ken-alone"),
    "URL whose password holds an @": ("postgres://u:{}@db/x", "p@ss@word"),
    "URL in mixed case": ("HTTPS://Bob:{}@Proxy.example", "HunteR2"),
    "URL in JSON with escaped slashes": ('{{"u": "https:\\/\\/bob:{}@x"}}', "hunter2"),
    "query": ("GET https://h/x?a=1&api_key={}&b=2", "q-key"),
    "query in mixed case": ("https://h/x?Api-Key={}", "q-key"),
    "query token": ("https://h/x?access_token={}#f", "abc123"),
    "SAS signature": ("https://acct.blob.core.windows.net/c/f?sv=2024&sp=r&sig={}&se=2026", "aB3%2Fx%3D"),
    "S3 signature": ("https://b.s3.amazonaws.com/k?X-Amz-Date=1&X-Amz-Signature={}", "deadbeef01"),
    "Azure connection string": ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};Suffix=x", "Zm9vYmFy=="),
    "header": ("authorization: bearer {}", "short1"),
    "header in mixed case": ("X-Api-Key: {}", "k3y"),
    "basic header": ("Proxy-Authorization: Basic {}", "dTpw"),
    "cookie": ("Cookie: session={}; other=1", "s3ss"),
    "option and word": ("vllm serve m --api-key {} --port 1", "k1"),
    "option with equals sign": ("--Api-Key={}", "k1"),
    "set": ("k3ctl serve --set env.HF_TOKEN={} --set a=1", "short-1"),
    "set of a key": ("k3ctl serve --set api_key={}", "short-1"),
    "variable": ("PGPASSWORD={} psql", "pw"),
    "camel case": ('{{"apiKey": "{}"}}', "k1"),
    "JSON": ('{{"api_key":"{}"}}', "k1"),
    "JSON in a JSON string": ('{{"body": "{{\\"api_key\\": \\"{}\\"}}"}}', "inner-key"),
    "JSON twice in a string": ('{{"b": "{{\\\\\\"password\\\\\\": \\\\\\"{}\\\\\\"}}"}}', "deep-key"),
    "JSON list of words": ('["serve","--api-key","{}","--port","1"]', "k1-word"),
    "Python list of words": ("['serve', '--hf-token', '{}']", "k1-word"),
    "Python dict with a list": ("non-default args: {{'api_key': ['{}'], 'port': 1}}", "k1"),
    "YAML": ("password: {}", "pw"),
    "YAML with spaces inside": ("passphrase: '{}'", "correct horse"),
    "Go's assignment": ("secret := {}", "abc"),
    "a harmless word before it": ("TOKENIZER_SECRET={}", "s3cr3t"),
    "anthropic": ("key is {}", "sk-ant-api03-AbCdEfGhIjKlMnOp"),
    "google": ("using {}", "AIzaSyA1234567890abcdefghijklmnopqrstu"),
    "groq": ("using {}", "gsk_AbCdEfGhIjKlMnOpQr"),
    "docker": ("using {}", "dckr_pat_AbCdEfGhIjKlMnOpQr"),
    "vault": ("using {}", "hvs.CAESIAbCdEfGhIjKlMnOpQr"),
    "upper-cased prefix": ("using {}", "HF_AbCdEfGhIjKlMnOpQrStUvWx"),
    "bytes in Python": ("{{'token': b'{}'}}", "b1tes-of-a-key"),
    "bearer as a name": ("bearer={}", "abc123def"),
    "short for password": ("db_pw={}", "abc123def"),
    "Slack's webhook": ("https://hooks.slack.com/services/{}", "T0000/B0000/XXXXXXXXXXXX"),
    "Discord's webhook": ("https://discord.com/api/webhooks/{}", "123456/AbCdEfGhIjKl-MnOp"),
    "Atlassian": ("using {}", "ATATT3xFfGF0AbCdEfGhIjKlMnOp"),
    "Databricks": ("using {}", "dapi0123456789abcdef0123456789abcdef"),
    "curl's user": ("curl -u bob:{} http://h", "hunter2"),
    "curl's user in long": ("curl --user 'bob:{}' http://h", "hunter2"),
    "netrc": ("machine h login bob password {}", "hunter2"),
    "cut private key": ("-----BEGIN RSA PRIVATE KEY-----\n{}", "MIIEpAIBAAKC"),
}  # fmt: skip


@pytest.mark.parametrize(("line", "secret"), LINES.values(), ids=LINES)
def test_a_planted_secret_survives_nowhere(line: str, secret: str) -> None:
    text = line.format(secret)
    for hide in (redact.PLAIN, HIDE):
        for name, method in (("text", hide.text), ("log", hide.log), ("json", hide.json)):
            for around in (text, f"INFO 11-30 [x.py:1] {text} done", f"{text}\n{text}"):
                hidden, count = method(around)
                assert secret not in hidden, name
                assert count >= 1, name
                assert method(hidden) == (hidden, 0), f"{name} again changes {hidden!r}"
    inside = json.dumps({"a": [text, {"b": text}], text: 1})
    assert secret not in HIDE.json(inside)[0]
    json.loads(HIDE.json(inside)[0])
    assert secret not in json.dumps(redact.PLAIN.value({"a": [text], text: 1}))


def test_what_lies_under_a_secret_name_is_secret() -> None:
    data = {"credentials": {"user": "bob", "value": ["pw1", "pw2"]}, "api_key": ["k1", "k2"], "port": 1}
    assert redact.PLAIN.value(data) == {
        "credentials": {"user": "***", "value": ["***", "***"]},
        "api_key": ["***", "***"],
        "port": 1,
    }
    assert set(redact.secrets(data)) == {"bob", "pw1", "pw2", "k1", "k2"}


def test_every_word_after_a_secret_option_goes() -> None:
    words = [
        "vllm",
        "serve",
        "m",
        "--api-key",
        "k1",
        "k2",
        "--port",
        "1",
        "--hf-token=k3",
        "--tokenizer",
        "/t",
    ]
    assert redact.PLAIN.argv(words) == (
        "vllm", "serve", "m", "--api-key", "***", "***", "--port", "1", "--hf-token=***", "--tokenizer", "/t",
    )  # fmt: skip
    config = json.dumps({"kv_connector_extra_config": {"password": "k4", "url": "redis://:k5@h"}})
    hidden = redact.PLAIN.argv(["--kv-transfer-config", config])[1]
    assert "k4" not in hidden
    assert "k5" not in hidden
    assert json.loads(hidden)["kv_connector_extra_config"]["password"] == "***"


@pytest.mark.parametrize(
    "text",
    [
        '{"api_key":"first","api_key":"second"}',
        '{"api_key":"\\u0066irst"}',
        '{"api_key":"fir\\u0073t","x":"https:\\/\\/u:second@h"}',
        '[' * 100_000 + '"--api-key first"',
    ],
    ids=["one key twice", "escaped letter", "escaped slash", "too deep"],
)  # fmt: skip
def test_spelling_json_otherwise_hides_nothing(text: str) -> None:
    hidden, count = redact.PLAIN.json(text)
    assert count
    for word in ("first", "second", "fir\\u0073t", "\\u0066irst"):
        assert word not in hidden


@pytest.mark.parametrize(
    "name",
    ["max_num_batched_tokens", "prompt_token_ids", "tokenizer", "tokenizer_mode", "num_speculative_tokens",
     "served_model_name", "ssl_keyfile", "PWD", "public_key", "prefix_cache_key", "max_tokens", "first_token_ms"],
)  # fmt: skip
def test_harmless_names_are_no_secrets(name: str) -> None:
    assert not redact.secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["api_key", "API-KEY", "apiKey", "HF_TOKEN", "hfToken", "--hf-token", "env.MY_SECRET", "PGPASSWORD", "VLLM_KEY",
     "authorization", "AWS_SECRET_ACCESS_KEY", "client_secret", "tokenizer_api_key", "auth_tokens", "DB_PASS"],
)  # fmt: skip
def test_secret_names_are_known(name: str) -> None:
    assert redact.secret_name(name)
