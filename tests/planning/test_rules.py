"""Every rule fires on the configuration that it is for, and on no shipped profile by mistake."""

from dataclasses import replace

import pytest

from k3ctl.planning.hardware import Domain, described
from k3ctl.planning.rules import ALL, Effect, checked, evaluate
from k3ctl.profiles.loader import names
from k3ctl.profiles.overrides import parse_value

from .building import deployment

K = "speculative_config.num_speculative_tokens"
LAYERWISE = {
    "kv_connector": "LMCacheConnectorV1",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"use_layerwise": True},
}


def split_rack():
    trays = tuple(f"tray{i}" for i in range(4))
    parts = (Domain("clique 1", trays[:2], 8, "yes"), Domain("clique 2", trays[2:], 8, "yes"))
    return replace(described("GB300:16"), domains=parts)


def no_multicast():
    hardware = described("B300:8")
    return replace(hardware, domains=(replace(hardware.domains[0], multicast="no"),))


H = "h200-tp8-pp2"
# rule: (base profile, changes, environment, hardware, workload)
FIRING = {
    "requires.gpu": ("b300-tp8", {}, {}, "GB300:8", {}),
    "requires.gpus": ("gb300-tp16", {}, {}, "GB300:8", {}),
    "requires.nvlink-domain": ("gb300-tp16", {}, {}, split_rack(), {}),
    "requires.driver": ("b300-tp8", {}, {}, replace(described("B300:8"), driver="570.124.06"), {}),
    "requires.vllm": ("b300-tp8", {}, {}, None, {"vllm": "0.34.1"}),
    "specialized.vllm": ("b300-tp8", {}, {}, None, {"vllm": "0.32.0"}),
    "memory.checkpoint": ("b300-tp8", {"tensor_parallel_size": 4}, {}, None, {}),
    "memory.fit": ("h200-tp16", {"enable_expert_parallel": False}, {}, None, {}),
    "memory.kda-blocks": ("b300-tp8", {"max_num_seqs": 5000}, {}, None, {}),
    "parallel.heads": ("gb300-tp16", {"tensor_parallel_size": 5}, {}, None, {}),
    "parallel.dcp": ("b300-tp8", {"decode_context_parallel_size": 3}, {}, None, {}),
    "parallel.ray-nnodes": ("gb300-tp16", {"distributed_executor_backend": "ray"}, {}, None, {}),
    "drafter.version": ("b300-tp8", {}, {}, None, {"vllm": "0.26.0"}),
    "drafter.runner": ("b300-tp8", {}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, None, {}),
    "prefix-caching.version": ("b300-tp8", {}, {}, None, {"vllm": "0.27.1"}),
    "trust-remote-code": ("b300-tp8", {"trust_remote_code": None}, {}, None, {}),
    "connector.hybrid": ("b300-tp8", {"kv_transfer_config": LAYERWISE}, {}, None, {}),
    "connector.canary": ("gb300-pd-decode", {}, {}, None, {}),
    "allreduce.mnnvl": ("h200-tp16", {"compilation_config": None}, {}, None, {}),
    "utilization": ("b300-tp8", {"gpu_memory_utilization": 0.95}, {}, None, {}),
    "admission": ("b300-tp8", {}, {}, None, {"concurrency": 16}),
    "drafts.eight": ("b300-tp8-8k1k-blog", {}, {}, None, {}),
    "max-num-seqs.buffers": ("b300-tp8-8k1k-blog", {}, {}, None, {}),
    "prefix-caching.off": ("b300-tp8-8k1k-blog", {}, {}, None, {}),
    "observability.graphs": ("b300-tp8", {"cudagraph_metrics": None}, {}, None, {}),
    "observability.itl": ("b300-tp8-8k1k-blog", {}, {}, None, {}),
    "specialized.backend": ("b300-tp8", {"additional_config.decode_backend": "fast"}, {}, None, {}),
    "specialized.gpu": ("b300-tp8", {}, {}, "H200:8", {}),
    "specialized.moe": ("b300-tp8", {"hf_overrides": {"text_config": {"num_experts": 384}}}, {}, None, {}),
    "specialized.tp": ("b300-tp8", {"tensor_parallel_size": 4}, {}, None, {}),
    "specialized.pp": ("gb300-tp16", {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}, {}, None, {}),
    "specialized.ep": ("gb300-tp16", {"enable_expert_parallel": True}, {}, None, {}),
    "specialized.dbo": ("b300-tp8", {"ubatch_size": 2}, {}, None, {}),
    "specialized.dcp": ("gb300-tp16", {"decode_context_parallel_size": 8}, {}, None, {}),
    "specialized.sleep": ("b300-tp8", {"enable_sleep_mode": True}, {}, None, {}),
    "specialized.lora": ("b300-tp8", {"enable_lora": True}, {}, None, {}),
    "specialized.v2-runner": ("b300-tp8", {}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, None, {}),
    "specialized.torch-compile": (
        "b300-tp8",
        {"compilation_config.mode": 1},
        {"VLLM_USE_BREAKABLE_CUDAGRAPH": "0"},
        None,
        {},
    ),
    "specialized.full-graphs": ("b300-tp8", {"enforce_eager": True}, {}, None, {}),
    "specialized.speculator": ("b300-tp8", {"speculative_config.method": "mtp"}, {}, None, {}),
    "specialized.adaptive-verification": (
        "b300-tp8",
        {"speculative_config.enable_adaptive_verification": True},
        {},
        None,
        {},
    ),
    "specialized.kda-dtypes": ("b300-tp8", {"mamba_ssm_cache_dtype": "bfloat16"}, {}, None, {}),
    "specialized.replayssm": ("b300-tp8", {"use_replayssm": True}, {}, None, {}),
    "specialized.drafts": ("b300-tp8", {K: 8}, {}, None, {}),
    "specialized.aux-stream": ("b300-tp8", {}, {"VLLM_KIMI_K3_AUX_ATTN_RES_STREAM": "1"}, None, {}),
    "specialized.fp8-kv": ("b300-tp8", {"kv_cache_dtype": "auto"}, {}, None, {}),
    "fp8-kv.prefill": ("b300-tp8", {"attention_config": {}}, {}, None, {}),
    "fp8-kv.hopper": ("h200-tp16", {"kv_cache_dtype": "fp8"}, {}, None, {}),
    "specialized.moe-backend": ("b300-tp8", {"moe_backend": "marlin"}, {}, None, {}),
    "specialized.checkpoint": ("b300-tp8", {"quantization": "modelopt_nvfp4"}, {}, None, {}),
    "specialized.dp": ("gb300-tp16", {"tensor_parallel_size": 8, "data_parallel_size": 2}, {}, None, {}),
    "specialized.eplb": ("b300-tp8", {"enable_eplb": True}, {}, None, {}),
    "specialized.offload": ("b300-tp8", {"cpu_offload_gb": 10}, {}, None, {}),
    "specialized.weight-update": ("b300-tp8", {"weight_transfer_config": {"backend": "nccl"}}, {}, None, {}),
    "specialized.pcp": ("b300-tp8", {"prefill_context_parallel_size": 2}, {}, None, {}),
    "specialized.domain": (
        "h200-tp16",
        {"additional_config": {"decode_backend": "latency_specialized"}},
        {},
        None,
        {},
    ),
    "specialized.multicast": ("b300-tp8", {}, {}, no_multicast(), {}),
    "hopper.gpu": (H, {}, {}, "B300:16", {}),
    "hopper.model": (H, {"hf_overrides": {"text_config": {"num_experts": 384}}}, {}, None, {}),
    "hopper.vllm": (H, {}, {}, None, {"vllm": "0.32.0"}),
    "hopper.both": (H, {"additional_config.decode_backend": "latency_specialized"}, {}, None, {}),
    "hopper.dp": (H, {"data_parallel_size": 2}, {}, None, {}),
    "hopper.dcp": (H, {"decode_context_parallel_size": 8}, {}, None, {}),
    "hopper.pcp": (H, {"prefill_context_parallel_size": 2}, {}, None, {}),
    "hopper.ep": (H, {"enable_expert_parallel": True}, {}, None, {}),
    "hopper.dbo": (H, {"enable_dbo": True}, {}, None, {}),
    "hopper.sleep": (H, {"enable_sleep_mode": True}, {}, None, {}),
    "hopper.lora": (H, {"enable_lora": True}, {}, None, {}),
    "hopper.v2-runner": (H, {}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, None, {}),
    "hopper.torch-compile": (
        H,
        {"compilation_config.mode": 1},
        {"VLLM_USE_BREAKABLE_CUDAGRAPH": "0"},
        None,
        {},
    ),
    "hopper.full-graphs": (H, {"enforce_eager": True}, {}, None, {}),
    "hopper.kda-dtypes": (H, {"mamba_ssm_cache_dtype": "bfloat16"}, {}, None, {}),
    "hopper.replayssm": (H, {"use_replayssm": True}, {}, None, {}),
    "hopper.adaptive-verification": (
        H,
        {
            "speculative_config": {
                "method": "dspark",
                "num_speculative_tokens": 3,
                "enable_adaptive_verification": True,
            }
        },
        {},
        None,
        {},
    ),
    "hopper.drafts": (
        H,
        {"speculative_config": {"method": "dspark", "num_speculative_tokens": 8}},
        {},
        None,
        {},
    ),
    "hopper.rows": (H, {"max_num_seqs": 128}, {}, None, {"concurrency": 100}),
    "hopper.plugin": (H, {}, {"VLLM_PLUGINS": "k3_witness"}, None, {}),
    "additional-config.key": (
        "b300-tp8",
        {"additional_config": {"decode_bakend": "latency_specialized"}},
        {},
        None,
        {},
    ),
    "additional-config.value": ("b300-tp8", {"additional_config.mla_core": "flash"}, {}, None, {}),
    "specialized.rows": ("b300-tp8", {"max_num_seqs": 16}, {}, None, {"concurrency": 9}),
    "specialized.max-num-seqs": ("b300-tp8", {"max_num_seqs": 16}, {}, None, {"concurrency": 8}),
    "specialized.capture-sizes": ("b300-tp8", {"cudagraph_capture_sizes": [128]}, {}, None, {}),
    "specialized.graph-downgrade": ("b300-tp8", {"attention_backend": "CUTLASS_MLA"}, {}, None, {}),
    "specialized.dynamic-drafts": (
        "b300-tp8",
        {"speculative_config.num_speculative_tokens_per_batch_size": [[8, 3]]},
        {},
        None,
        {},
    ),
    "specialized.prefill-mixed": ("b300-tp8", {}, {}, None, {"concurrency": 4}),
    "env.target-device": ("b300-tp8", {}, {"VLLM_TARGET_DEVICE": "cpu"}, None, {}),
    "env.host-ip": ("gb300-tp16", {}, {"VLLM_HOST_IP": "127.0.0.1"}, None, {}),
    "env.mnnvl": ("gb300-tp16", {}, {"NCCL_MNNVL_ENABLE": "0"}, None, {}),
    "env.ready-timeout": ("b300-tp8", {}, {"VLLM_ENGINE_READY_TIMEOUT_S": "600"}, None, {}),
    "env.execute-timeout": ("b300-tp8", {}, {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "300"}, None, {}),
    "env.plugins": ("b300-tp8", {}, {"VLLM_PLUGINS": "k3_runtime"}, None, {}),
    "pipeline.pynccl": (
        "h200-tp8-pp2",
        {},
        {"VLLM_PLUGINS": "k3_witness", "VLLM_DISABLE_PYNCCL": "1"},
        None,
        {},
    ),
    "prefix-caching.retention": ("b300-tp8", {"prefix_cache_retention_interval": 1000}, {}, None, {}),
    "env.dev-mode": ("b300-tp8", {"host": "0.0.0.0"}, {"VLLM_SERVER_DEV_MODE": "1"}, None, {}),
}


def build(case):
    base, changes, env, hardware, workload = case
    version = workload.get("vllm", "0.33.0")
    made = deployment(base, changes, env, hardware, **{k: v for k, v in workload.items() if k != "vllm"})
    return replace(made, vllm=version)


def fired(made):
    return {finding.rule.id: finding for finding in evaluate(ALL, made)}


def test_every_rule_has_a_firing_case_and_a_unique_id():
    ids = [rule.id for rule in ALL]
    assert len(ids) == len(set(ids))
    assert set(ids) == set(FIRING)


@pytest.mark.parametrize("rule", FIRING)
def test_the_rule_fires_and_offers_an_alternative(rule):
    found = fired(build(FIRING[rule]))
    assert rule in found
    assert found[rule].hit.found and found[rule].hit.alternative


@pytest.mark.parametrize("rule", FIRING)
def test_what_a_rule_suggests_can_be_typed(rule):
    for key, value in fired(build(FIRING[rule]))[rule].hit.changes.items():
        parse_value(key, str(value).lower() if isinstance(value, bool) else str(value))


@pytest.mark.parametrize("name", names())
def test_no_shipped_profile_is_blocked_on_its_own_hardware(name):
    assert [f.rule.id for f in evaluate(ALL, deployment(name)) if f.rule.effect.blocks] == []


@pytest.mark.parametrize("rule", ["specialized.drafts", "specialized.rows", "fp8-kv.prefill"])
def test_a_rule_does_not_fire_outside_its_versions(rule):
    made = build(FIRING[rule])
    assert rule in fired(made)
    assert rule not in fired(replace(made, vllm="0.34.0"))


def test_the_checked_rules_are_the_18_conditions_in_vllms_order():
    assert [rule.reason for rule in checked.RULES[1:]] == [
        "this GPU (SM100/103)",
        "MoE configs but the one-group sigmoid top-16 SiTU MoE of Kimi K3",
        "TP other than 8/16",
        "pipeline parallelism",
        "expert parallelism",
        "DBO",
        "decode context parallel other than 1 or TP",
        "sleep mode",
        "LoRA",
        "the V1 model runner",
        "torch.compile",
        "deployments without FULL decode CUDA graphs (e.g. enforce-eager)",
        "speculative methods but DSpark",
        "adaptive verification",
        "KDA cache dtypes other than a BF16 conv state and an FP32 recurrent state (mamba cache dtype)",
        "ReplaySSM / RecoverSSM (--use-replayssm)",
        "more than 7 speculative tokens",
        "the AttnRes aux stream",
    ]


def test_specialized_rules_are_silent_for_the_standard_path_unless_asked():
    made = deployment("b300-tp8-8k1k-blog")
    assert not [f for f in evaluate(ALL, made) if f.rule.specialized]
    wanted = {f.rule.id for f in evaluate(ALL, made, specialized=True) if f.rule.effect.blocks}
    assert wanted == {"specialized.drafts", "specialized.fp8-kv"}


def test_a_layerwise_connector_is_named_as_the_cause_of_piecewise_graphs():
    found = fired(deployment("b300-tp8", {"kv_transfer_config": LAYERWISE}))["specialized.full-graphs"]
    assert "LMCacheConnectorV1" in found.hit.found and "PIECEWISE" in found.hit.found


def test_gpu_rules_leave_the_cpu_engine_alone():
    found = fired(deployment("cpu-tiny", {"additional_config": {"decode_bakend": "x"}, "max_num_seqs": 64}))
    assert set(found) == {"additional-config.key", "specialized.rows"} - {"specialized.rows"}


def test_too_many_rows_are_seen_on_the_cpu_engine_too():
    assert "specialized.rows" in fired(deployment("cpu-tiny", {"max_num_seqs": 64}))


def test_variables_already_on_the_hosts_count():
    hardware = replace(
        described("B300:8"), environment={"NCCL_NVLS_ENABLE": "0", "NVSHMEM_DISABLE_NVLS": "1"}
    )
    found = fired(deployment("b300-tp8", hardware=hardware))["specialized.multicast"].hit.found
    # the profile sets NCCL_NVLS_ENABLE, and gives way to the host's as `k3ctl serve` does to the caller's
    assert "NVSHMEM_DISABLE_NVLS=1" in found and "NCCL_NVLS_ENABLE=0" in found


def test_effects_that_block_are_the_three_worst():
    assert [effect.blocks for effect in Effect] == [True, True, True, False, False]
