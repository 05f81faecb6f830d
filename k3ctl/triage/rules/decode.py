"""The decode path: refused, downgraded, or never reached."""

from __future__ import annotations

import re
from datetime import date

from k3ctl.triage.rules import TriageRule

_SOURCE = "vLLM 0.33.0, models/kimi_k3/nvidia/specialized_decode/runtime/__init__.py"
_CHECKED = date(2026, 9, 22)
_EXPIRES = date(2027, 3, 31)
_V33 = ">=0.33,<0.34"

REFUSALS: tuple[tuple[int, str, str, str], ...] = (
    # (number of the check, its text in the log, what it means, what to do)
    (
        1,
        "this GPU",
        "the GPU is not SM100 or SM103",
        "serve this GPU with the standard path: decode_backend=auto",
    ),
    (2, "MoE configs but", "the model is not Kimi K3's MoE", "check --model: only Kimi K3 has this path"),
    (3, "TP other than", "tensor parallelism is neither 8 nor 16", "set tensor_parallel_size to 8 or 16"),
    (4, "pipeline parallelism", "pipeline parallelism is on", "set pipeline_parallel_size=1"),
    (5, "expert parallelism", "expert parallelism is on", "drop enable_expert_parallel"),
    (6, "DBO", "dual-batch overlap is on", "drop enable_dbo"),
    (
        7,
        "decode context parallel",
        "decode context parallelism is neither 1 nor the tensor parallelism",
        "set decode_context_parallel_size to 1 or to tensor_parallel_size",
    ),
    (8, "sleep mode", "sleep mode is on", "drop enable_sleep_mode"),
    (9, "LoRA", "LoRA is on", "drop enable_lora"),
    (10, "the V1 model runner", "the V1 model runner runs", "unset VLLM_USE_V2_MODEL_RUNNER"),
    (11, "torch.compile", "stock torch.compile is on", "drop the compilation mode from compilation_config"),
    (
        12,
        "deployments without FULL decode",
        "decode runs without FULL CUDA graphs",
        "drop enforce_eager, and let cudagraph_mode be FULL_AND_PIECEWISE",
    ),
    (
        13,
        "speculative methods but DSpark",
        "the speculator is not DSpark",
        "set speculative_config.method=dspark",
    ),
    (14, "adaptive verification", "adaptive verification is on", "drop enable_adaptive_verification"),
    (
        15,
        "KDA cache dtypes",
        "the KDA state is not BF16 convolution and FP32 recurrence",
        "drop mamba_ssm_cache_dtype and mamba_cache_dtype",
    ),
    (16, "ReplaySSM", "ReplaySSM is on", "drop use_replayssm"),
    (
        17,
        "more than 7 speculative",
        "there are more than 7 speculative tokens",
        "set speculative_config.num_speculative_tokens=7",
    ),
    (
        18,
        "AttnRes aux stream",
        "the AttnRes side stream is on together with speculation",
        "unset VLLM_KIMI_K3_AUX_ATTN_RES_STREAM",
    ),
)
"""Conditions of the specialized decode, in the order in which vLLM checks them; it reports only the first."""

RULES = (
    *(
        TriageRule(
            id=f"specialized-refused-{number}",
            title=f"specialized decode refused: {meaning}",
            cause=f"vLLM checks 18 conditions when it builds the model and stops at the first that "
            f"fails: {meaning}",
            action=f"{action}; `k3ctl plan` shows every reason at once, before the load",
            source=f"{_SOURCE}, check {number}",
            checked=_CHECKED,
            expires=_EXPIRES,
            patterns=("specialized decode does not support .*" + re.escape(text),),
            vllm=_V33,
        )
        for number, text, meaning, action in REFUSALS
    ),
    TriageRule(
        id="v1-runner-forced",
        title="the V1 model runner was forced, and DSpark needs V2",
        cause="VLLM_USE_V2_MODEL_RUNNER=0 is set, often by a site profile",
        action="unset VLLM_USE_V2_MODEL_RUNNER",
        source="vLLM 0.33.0, config/vllm.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"Model Runner V1 does not support: (?P<what>.+)",),
        vllm=_V33,
    ),
    TriageRule(
        id="graph-downgrade",
        title="CUDA graphs were downgraded to {mode}: specialized decode is off",
        cause="{backend} supports no full graph here, so vLLM changed cudagraph_mode for the whole "
        "engine after the "
        "specialized path had been accepted; it decodes with the standard path and does not say so",
        action="choose another attention backend (attention_config.backend) or drop what needs PIECEWISE",
        source="https://github.com/vllm-project/vllm/pull/51171, "
        "https://github.com/vllm-project/vllm/issues/49547",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"CUDAGraphMode\.\w+ is not supported with .*?(?P<backend>\w+Backend).*setting cudagraph_mode="
            r"(?P<mode>PIECEWISE|NONE)",
            r"(?P<backend>KV connector .*?) requires (?P<mode>PIECEWISE) CUDA graph mode",
        ),
        severity="warning",
        leads_to=("decode-not-full",),
        instead=((("standard-decode",), "graph-downgrade-standard"),),
        unlike="`specialized-refused-12`: refused at once; here it was accepted and is silently off",
    ),
    TriageRule(
        id="graph-downgrade-standard",
        title="CUDA graphs were downgraded to {mode}",
        cause="{backend} supports no full graph here, so vLLM changed cudagraph_mode for the whole engine; "
        "decoding gets slower "
        "(16 % in one report)",
        action="choose another attention backend (attention_config.backend) or drop what needs PIECEWISE",
        source="https://github.com/vllm-project/vllm/issues/49547, https://github.com/vllm-project/vllm/issues/48494",
        checked=date(2026, 11, 30),
        expires=_EXPIRES,
        severity="warning",
        unlike="`graph-downgrade`: the specialized decode was asked for and is lost",
    ),
    TriageRule(
        id="tail-fusion-tp",
        title="TP={tp}: neither the fused MoE tail nor specialized decode exists for it",
        cause="the latent-MoE tail fusion and the specialized decode are built for TP 8 and TP 16 only",
        action="set tensor_parallel_size to 8 or 16",
        source="vLLM 0.33.0, models/kimi_k3/nvidia/latent_moe_runner.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"tail fusion currently supports TP=8 and TP=16, but TP=(?P<tp>\d+) is configured",),
        severity="warning",
        vllm=_V33,
    ),
    TriageRule(
        id="kda-prefill-unsupported",
        title="FlashKDA cannot prefill here",
        cause="the KDA prefill backend was set to FlashKDA, which needs SM90, SM10x or SM12x, bfloat16, "
        "a head size of "
        "128 and a bounded gate",
        action="drop kda_prefill_backend: automatic choice falls back by itself",
        source="vLLM 0.33.0, models/kimi_k3/nvidia/kda.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"FlashKDA requires CUDA",),
        vllm=_V33,
    ),
    TriageRule(
        id="rows-over-limit",
        title="specialized decode not engaged for {share} of the decode steps: more than 64 rows",
        cause="{running} running requests of {q} verify rows each make steps above 64 rows, which are "
        "never specialized",
        action="{advice}",
        source=f"{_SOURCE.replace('__init__', 'decode')}, plan()",
        checked=_CHECKED,
        expires=_EXPIRES,
        severity="warning",
    ),
    TriageRule(
        id="decode-not-full",
        title="specialized decode not engaged: {share} of the decode steps ran in {mode} mode",
        cause="only FULL graphs hold the specialized kernels",
        action="find the warning that changed cudagraph_mode, or drop enforce_eager",
        source=f"{_SOURCE.replace('__init__', 'decode')}, plan()",
        checked=_CHECKED,
        expires=_EXPIRES,
        severity="warning",
    ),
    TriageRule(
        id="specialized-consistent",
        title="the log is consistent with specialized decode ({share} of the decode steps could be)",
        cause="the backend was asked for, nothing turned it off, and the graph table shows FULL steps of "
        "64 rows or "
        "fewer; a standard step looks the same there, so this is no proof",
        action="`k3ctl verify` proves or refutes it from the counters",
        source="vLLM 0.33.0, compilation/cuda_graph.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        severity="info",
    ),
    TriageRule(
        id="step-times",
        title="decode step {steps}",
        cause="from the iteration details of this log",
        action="compare with the anchors: `k3ctl profiles show`",
        source="vLLM 0.33.0, v1/metrics/loggers.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        severity="info",
    ),
)
