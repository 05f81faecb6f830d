"""Published and invented configurations reach the verdicts that their files expect; refusal logs are predicted."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from k3ctl.planning.hardware import described
from k3ctl.planning.proposal import Proposal, Workload
from k3ctl.planning.rules import ALL, checked, evaluate
from k3ctl.profiles.loader import load
from k3ctl.profiles.resolve import resolve

from .building import deployment

FIXTURES = Path(__file__).parent.parent / "fixtures"
PLANS = sorted(FIXTURES.glob("plan-*.yaml"))
LOGS = sorted(FIXTURES.glob("vllm-log-specialized-reject-*.txt"))
CAUSES = {
    "k8": {},
    "bf16-ssm": {"mamba_ssm_cache_dtype": "bfloat16"},
    "replayssm": {"use_replayssm": True},
    "dcp8-tp16": {"tensor_parallel_size": 16, "decode_context_parallel_size": 8},
    "eager": {"enforce_eager": True},
    "hopper": {},
}
"""What the logs leave out of their argument line."""
HARDWARE = {"hopper": "H200:8"}


def from_plan(path):
    data = yaml.safe_load(path.read_text())
    base = resolve(load("gb300-tp16"))
    args = {key.replace("-", "_"): value for key, value in data["serve"].items()}
    args["trust_remote_code"] = True
    if data.get("wanted"):
        args["additional_config"] = {"decode_backend": data["wanted"]}
    hardware = described(f"{data['hardware']['gpu']}:{data['hardware']['count']}")
    config = replace(base, args=args, env=data.get("env", {}))
    return Proposal(config, hardware, Workload(concurrency=56) if "infx" in path.name else Workload()), data[
        "expect"
    ]


def near(expected, text):
    """The words of an expectation, in any order."""
    return all(
        word in text.lower()
        for word in re.findall(r"[a-z0-9]{2,}", expected.lower())
        if word not in {"the", "no"}
    )


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_plan_reaches_its_expected_verdict(path):
    made, expect = from_plan(path)
    findings = evaluate(ALL, made)
    blocking = [f for f in findings if f.rule.effect.blocks]
    assert blocking and expect["verdict"] == "reject"
    texts = [f"{f.rule.reason} {f.hit.found} {f.hit.alternative} {f.rule.title}" for f in findings]
    for reason in expect.get("reasons", []) + expect.get("also", []):
        assert any(near(reason, text) for text in texts), reason


def test_all_reasons_come_at_once_in_vllms_order():
    made, expect = from_plan(FIXTURES / "plan-multi-reason.yaml")
    found = evaluate(checked.RULES, made)
    assert len(found) == len(expect["reasons_in_vllm_order"])
    for finding, reason in zip(found, expect["reasons_in_vllm_order"], strict=True):
        assert near(reason, f"{finding.rule.reason} {finding.rule.title} {finding.hit.found}"), reason


def test_the_published_8k1k_command_gets_its_suggestion():
    made, expect = from_plan(FIXTURES / "plan-blog-8k1k-b300.yaml")
    hit = next(f.hit for f in evaluate(ALL, made) if f.rule.id == "specialized.drafts")
    assert (
        hit.changes["speculative_config.num_speculative_tokens"]
        == expect["suggest"]["num_speculative_tokens"]
    )
    assert f"up to {expect['suggest']['max_concurrency_specialised']} concurrent requests" in hit.alternative


def test_too_small_hardware_gets_its_suggestion():
    made, expect = from_plan(FIXTURES / "plan-gb200-tp8.yaml")
    hit = next(f.hit for f in evaluate(ALL, made) if f.rule.id == "memory.checkpoint")
    assert hit.found == expect["reasons"][0]
    assert hit.changes["tensor_parallel_size"] == expect["suggest"]["tensor-parallel-size"]


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_the_reason_in_a_refusal_log_is_predicted_from_its_configuration(path):
    text = path.read_text()
    logged = re.search(r"ValueError: Kimi K3 specialized decode does not support (.*)", text).group(1).strip()
    base = resolve(load("b300-tp8"))
    line = re.search(r"non-default args: (\{.*\})", text)  # the real log, cut to its error, has none
    args = ast.literal_eval(line.group(1)) if line else base.args
    args = {key: value for key, value in args.items() if key not in {"model", "model_tag"}}
    name = path.stem.removeprefix("vllm-log-specialized-reject-")
    config = replace(base, args=args | CAUSES[name], env={})
    found = evaluate(checked.RULES, Proposal(config, described(HARDWARE.get(name, "GB300:16"))))
    assert [finding.rule.reason for finding in found] == [logged]


def test_there_is_a_fixture_for_each_kind():
    assert len(PLANS) == 5 and len(LOGS) == len(CAUSES)
    assert deployment("gb300-tp16").specialized
