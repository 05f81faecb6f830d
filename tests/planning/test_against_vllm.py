"""Our verdict equals vLLM's own: every case is built with the real vLLM in one child process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from k3ctl.facts.k3 import K3
from k3ctl.planning import kvcache
from k3ctl.planning.render import render
from k3ctl.planning.rules import ALL, checked
from k3ctl.planning.rules.base import evaluate
from k3ctl.profiles.loader import names
from k3ctl.profiles.vllm_args import argv

from .building import deployment

pytestmark = [pytest.mark.engine, pytest.mark.slow]

DSPARK = {"method": "dspark", "model": "Inferact/Kimi-K3-DSpark", "num_speculative_tokens": 7}
LMCACHE = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
LAYERWISE = LMCACHE | {"kv_connector_extra_config": {"use_layerwise": True}}
MULTI = {
    "kv_connector": "MultiConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"connectors": [LAYERWISE]},
}

# id: (profile, changes of its arguments, environment, compute capability or None)
CASES = {
    "gb300-tp16": ("gb300-tp16", {}, {}, None),
    "gb300-tp8": ("gb300-tp8", {}, {}, None),
    "gb300-tp16-dcp16": ("gb300-tp16-dcp16", {}, {}, None),
    "gb300-pd-prefill": ("gb300-pd-prefill", {}, {}, None),
    "gb300-pd-decode": ("gb300-pd-decode", {}, {}, None),
    "b300-tp8": ("b300-tp8", {}, {}, None),
    "b300-tp8-8k1k-blog": ("b300-tp8-8k1k-blog", {}, {}, None),
    "h200-tp8-pp2": ("h200-tp8-pp2", {}, {}, None),
    "h200-tp16": ("h200-tp16", {}, {}, None),
    "no-speculation": ("gb300-tp16", {"speculative_config": None}, {}, None),
    "k1": ("gb300-tp16", {"speculative_config.num_speculative_tokens": 1}, {}, None),
    "k8": ("gb300-tp16", {"speculative_config.num_speculative_tokens": 8}, {}, None),
    "capability-9.0": ("b300-tp8", {}, {}, (9, 0)),
    "capability-10.0": ("b300-tp8", {}, {}, (10, 0)),
    "capability-12.0": ("b300-tp8", {"kv_cache_dtype": "auto"}, {}, (12, 0)),
    "tp4": ("b300-tp8", {"tensor_parallel_size": 4}, {}, None),
    "tp2": ("b300-tp8", {"tensor_parallel_size": 2}, {}, None),
    "tp4-pp2": ("b300-tp8", {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}, {}, None),
    "tp8-pp2": ("gb300-tp16", {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}, {}, None),
    "expert-parallel": ("gb300-tp16", {"enable_expert_parallel": True}, {}, None),
    "ep-tp4": ("b300-tp8", {"tensor_parallel_size": 4, "enable_expert_parallel": True}, {}, None),
    "dcp2": ("b300-tp8", {"decode_context_parallel_size": 2, "dcp_comm_backend": "a2a"}, {}, None),
    "dcp8-of-tp16": ("gb300-tp16", {"decode_context_parallel_size": 8}, {}, None),
    "dcp8-of-tp8": ("b300-tp8", {"decode_context_parallel_size": 8}, {}, None),
    "sleep": ("b300-tp8", {"enable_sleep_mode": True}, {}, None),
    "tp12": ("gb300-tp16", {"tensor_parallel_size": 12}, {}, None),
    "data-parallel": ("gb300-tp16", {"tensor_parallel_size": 8, "data_parallel_size": 2}, {}, None),
    "large-graphs-only": ("b300-tp8", {"cudagraph_capture_sizes": [128, 256]}, {}, None),
    "custom-drafter": (
        "b300-tp8",
        {"speculative_config": {"method": "custom_class", "model": "a.B", "num_speculative_tokens": 3}},
        {},
        None,
    ),
    "v1-runner": ("b300-tp8", {"speculative_config": None}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, None),
    "v2-runner-asked": ("b300-tp8", {}, {"VLLM_USE_V2_MODEL_RUNNER": "1"}, None),
    "eager": ("gb300-tp16", {"enforce_eager": True}, {}, None),
    "graphs-piecewise": ("b300-tp8", {"compilation_config.cudagraph_mode": "PIECEWISE"}, {}, None),
    "graphs-none": ("b300-tp8", {"compilation_config.cudagraph_mode": "NONE"}, {}, None),
    "graphs-full": ("b300-tp8", {"compilation_config.cudagraph_mode": "FULL"}, {}, None),
    "graphs-full-decode-only": (
        "b300-tp8",
        {"compilation_config.cudagraph_mode": "FULL_DECODE_ONLY"},
        {},
        None,
    ),
    "optimization-0": ("b300-tp8", {"optimization_level": 0}, {}, None),
    "optimization-3": ("b300-tp8", {"optimization_level": 3}, {}, None),
    "stock-compile-breakable": ("b300-tp8", {"compilation_config.mode": 1}, {}, None),
    "stock-compile": (
        "b300-tp8",
        {"compilation_config.mode": 1, "compilation_config.cudagraph_mode": "FULL"},
        {"VLLM_USE_BREAKABLE_CUDAGRAPH": "0"},
        None,
    ),
    "not-breakable": ("b300-tp8", {}, {"VLLM_USE_BREAKABLE_CUDAGRAPH": "0"}, None),
    "lmcache": ("b300-tp8", {"kv_transfer_config": LMCACHE}, {}, None),
    "lmcache-layerwise": ("b300-tp8", {"kv_transfer_config": LAYERWISE}, {}, None),
    "multi-connector": ("b300-tp8", {"kv_transfer_config": MULTI}, {}, None),
    "ngram": ("b300-tp8", {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, {}, None),
    "ngram-eager": (
        "b300-tp8",
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}, "enforce_eager": True},
        {},
        None,
    ),
    "adaptive": ("b300-tp8", {"speculative_config.enable_adaptive_verification": True}, {}, None),
    "bf16-state": ("b300-tp8", {"mamba_ssm_cache_dtype": "bfloat16"}, {}, None),
    "fp32-state": ("b300-tp8", {"mamba_ssm_cache_dtype": "float32"}, {}, None),
    "fp32-conv": ("b300-tp8", {"mamba_cache_dtype": "float32"}, {}, None),
    "bf16-conv": ("b300-tp8", {"mamba_cache_dtype": "bfloat16"}, {}, None),
    "fp16-model": ("b300-tp8", {"dtype": "float16", "speculative_config": None}, {}, None),
    "replayssm": ("b300-tp8", {"use_replayssm": True}, {}, None),
    "replayssm-k8": (
        "b300-tp8",
        {"use_replayssm": True, "speculative_config.num_speculative_tokens": 8},
        {},
        None,
    ),
    "aux-stream": ("b300-tp8", {}, {"VLLM_KIMI_K3_AUX_ATTN_RES_STREAM": "1"}, None),
    "aux-stream-no-speculation": (
        "b300-tp8",
        {"speculative_config": None},
        {"VLLM_KIMI_K3_AUX_ATTN_RES_STREAM": "1"},
        None,
    ),
    "bf16-kv": ("b300-tp8", {"kv_cache_dtype": "auto", "attention_config": None}, {}, None),
    "other-moe": ("b300-tp8", {"hf_overrides": {"text_config": {"num_experts_per_token": 8}}}, {}, None),
    "backend-auto": ("b300-tp8", {"additional_config": None}, {}, None),
    "max-num-seqs-default": ("b300-tp8", {"max_num_seqs": None}, {}, None),
    "many-reasons": (
        "gb300-tp16",
        {
            "enable_expert_parallel": True,
            "mamba_ssm_cache_dtype": "bfloat16",
            "use_replayssm": True,
            "enforce_eager": True,
        },
        {"VLLM_KIMI_K3_AUX_ATTN_RES_STREAM": "1"},
        None,
    ),
}
"""Enough of them that every one of the 18 checked conditions fires at least once, alone or first."""


# id: (profile, changes, environment, what vLLM says while it still builds the configuration)
REFUSED_EARLIER = {
    "lora": ("b300-tp8", {"enable_lora": True}, {}, "LoRA is not supported"),
    "v1-runner-dspark": ("b300-tp8", {}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, "does not support: dspark"),
    "dbo-dspark": ("gb300-tp16", {"enable_dbo": True}, {}, "does not support: dspark"),
    "dbo": ("gb300-tp16", {"enable_dbo": True, "speculative_config": None}, {}, "Microbatching"),
    "ubatch": ("gb300-tp16", {"ubatch_size": 2, "speculative_config": None}, {}, "Microbatching"),
    "dbo-v2": (
        "gb300-tp16",
        {"enable_dbo": True, "speculative_config": None},
        {"VLLM_USE_V2_MODEL_RUNNER": "1"},
        "does not yet support: dual batch overlap",
    ),
    "dcp3": ("b300-tp8", {"decode_context_parallel_size": 3}, {}, "must be divisible by dcp_size"),
    "tp5": ("b300-tp8", {"tensor_parallel_size": 5}, {}, "must be divisible by tensor parallel size"),
}


def build(name):
    base, changes, env, capability = CASES.get(name) or (*REFUSED_EARLIER[name][:3], None)
    made = deployment(base, changes, env)
    if capability:
        object.__setattr__(made.hardware, "capability", capability)
    return made


def request(name):
    made = build(name)
    hardware = made.hardware
    return {
        "id": name,
        "argv": argv(made.config),
        "env": {key: value for key, value in made.config.env.items() if key != "VLLM_PLUGINS"},
        "gpu": {
            "capability": list(hardware.capability),
            "name": f"NVIDIA {hardware.product}",
            "memory_bytes": hardware.gpu_bytes,
            "count": hardware.gpus // made.config.profile.requires.nodes,
        },
    }


def from_config_file(name, folder):
    """The same case, given to vLLM as the rendered configuration file."""
    files = render(build(name).config, "config")
    path = folder / f"{name}.yaml"
    path.write_text(files[path.name])
    return request(name) | {"id": path.name, "argv": ["--config", str(path)]}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("config")
    cases = [request(name) for name in [*CASES, *REFUSED_EARLIER]]
    cases += [from_config_file(name, folder) for name in CASES if name in names()]
    done = subprocess.run(
        [sys.executable, "-m", "runtime.offline.dryrun"],
        input=json.dumps({"cases": cases}),
        capture_output=True,
        text=True,
        timeout=280,
    )
    found = {answer["id"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    assert set(found) == {case["id"] for case in cases}, done.stderr[-2000:]
    return found


def ours(made):
    rules = [rule for rule in checked.RULES if rule.id != "specialized.backend"]
    return [finding.rule.reason for finding in evaluate(rules, made, specialized=True)]


@pytest.mark.parametrize("name", CASES)
def test_our_first_reason_is_vllms_reason(answers, name):
    answer = answers[name]
    assert answer["error"] is None
    reasons = ours(build(name))
    assert (reasons[0] if reasons else None) == answer["unsupported"]


@pytest.mark.parametrize("name", CASES)
def test_the_values_that_vllm_decides_on_are_predicted(answers, name):
    made, found = build(name), answers[name]["resolved"]
    cache = made.memory_settings.cache
    predicted = {
        "tensor_parallel_size": made.parallel.tp,
        "pipeline_parallel_size": made.parallel.pp,
        "decode_context_parallel_size": made.parallel.dcp,
        "max_num_seqs": made.max_num_seqs,
        "max_num_batched_tokens": made.max_num_batched_tokens,
        "enable_prefix_caching": made.prefix_caching,
        "draft_tokens": made.draft_tokens,
        "mla_row_bytes": K3.kv_width * cache.kv_bytes,
    }
    # a state of another convolution dtype is refused anyway, and its page is not planned
    if made.kda_dtypes[0] == "bfloat16":
        predicted["kda_page_bytes"] = kvcache.recurrent_bytes(cache) + kvcache.conv_bytes(cache)
    assert predicted == {key: found[key] for key in predicted}


@pytest.mark.parametrize("name", REFUSED_EARLIER)
def test_what_vllm_refuses_while_configuring_is_predicted(answers, name):
    assert REFUSED_EARLIER[name][3] in answers[name]["error"]
    assert any(finding.rule.effect.blocks for finding in evaluate(ALL, build(name)))


def test_every_checked_condition_occurs_as_vllms_first_reason(answers):
    seen = {answers[name]["unsupported"] for name in CASES} - {None}
    refused_while_configuring = {"LoRA", "DBO"}
    reasons = {rule.reason for rule in checked.RULES if rule.id != "specialized.backend"}
    assert seen == reasons - refused_while_configuring


@pytest.mark.parametrize("name", [name for name in CASES if name in names()])
def test_the_rendered_config_file_means_the_same_to_vllm(answers, name):
    from_file = answers[f"{name}.yaml"]
    assert from_file["error"] is None
    assert from_file["resolved"] == answers[name]["resolved"]


def test_the_argument_table_is_what_vllm_has(tmp_path):
    pytest.importorskip("vllm")
    table = tmp_path / "vllm_arguments.json"
    env = {**os.environ, "VLLM_TARGET_DEVICE": "cpu", "VLLM_PLUGINS": ""}
    subprocess.run(
        [sys.executable, "scripts/dump_vllm_arguments.py", str(table)], check=True, env=env, timeout=200
    )
    assert table.read_text() == Path("k3ctl/profiles/vllm_arguments.json").read_text()
