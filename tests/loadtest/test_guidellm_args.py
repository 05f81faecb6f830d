from __future__ import annotations

import shlex
from dataclasses import replace

from k3ctl.loadtest import guidellm_args, workload
from tests.loadtest.results import FIXTURES, K3_TARGET


def published_argv() -> list[str]:
    text = (FIXTURES / "guidellm-8k1k-published.sh").read_text(encoding="utf-8")
    return shlex.split(text.replace("\\\n", " "), comments=True)


def test_the_8k1k_argv_is_byte_equal_to_the_published_command() -> None:
    argv = guidellm_args.argv(
        workload.load("8k1k"), K3_TARGET, output="guidellm-results/output_vllm_kimik3_8k1k.json"
    )
    assert ["guidellm", *argv] == published_argv()


def test_target_model_and_output_are_the_only_differences_for_another_server() -> None:
    other = replace(K3_TARGET, url="http://10.0.0.5:8000", model="k3", tokenizer="/models/k3")
    argv = guidellm_args.argv(workload.load("8k1k"), other, output="guidellm.json")
    text = (
        shlex.join(["guidellm", *argv])
        .replace("http://10.0.0.5:8000", "http://127.0.0.1:30000")
        .replace('"model":"k3"', '"model":"moonshotai/Kimi-K3"')
        .replace("/models/k3", "moonshotai/Kimi-K3")
        .replace("guidellm.json", "guidellm-results/output_vllm_kimik3_8k1k.json")
    )
    assert text == shlex.join(published_argv())


def test_tokenizer_settings_reach_the_client_only_when_the_server_has_them() -> None:
    trusting = guidellm_args.argv(workload.load("smoke"), K3_TARGET, output="x.json")
    plain = guidellm_args.argv(
        workload.load("smoke"), replace(K3_TARGET, trust_remote_code=False), output="x.json"
    )
    assert '"load_kwargs":{"trust_remote_code":true}' in trusting[trusting.index("--tokenizer") + 1]
    assert "load_kwargs" not in plain[plain.index("--tokenizer") + 1]


def test_a_request_count_becomes_a_constraint_and_replaces_the_time_limit() -> None:
    load = workload.override(workload.load("8k1k"), requests=40)
    argv = guidellm_args.argv(load, K3_TARGET, output="x.json")
    assert "kind=max_requests,count=40" in argv
    assert not any("max_duration" in part for part in argv)
