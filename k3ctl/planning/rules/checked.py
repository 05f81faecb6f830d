"""The conditions that vLLM checks for the specialized path, in vLLM's order.

vLLM raises at the first one; ``reason`` is its wording, so that a log line and a rule can be matched.
"""

from __future__ import annotations

from k3ctl.facts.k3 import SPECIALIZED_DRAFTS, SPECIALIZED_TP
from k3ctl.facts.products import has_specialized
from k3ctl.planning import budget
from k3ctl.planning.proposal import Proposal
from k3ctl.planning.rules.base import Effect, Hit, RuleSet

_rules = RuleSet(
    effect=Effect.REFUSED,
    source="vllm/models/kimi_k3/nvidia/specialized_decode/runtime/__init__.py:unsupported",
    date="2026-09-23",
    vllm=">=0.33.0,<0.34",
)
rule = _rules.rule


@rule(
    "specialized.backend",
    reason="Supported decode_backend values are auto/latency_specialized",
    specialized=False,
)
def backend_value(d: Proposal) -> Hit | None:
    """`decode_backend` is `auto` or `latency_specialized`."""
    if d.backend in {"auto", "latency_specialized"}:
        return None
    return Hit(
        f"decode_backend is `{d.backend}`",
        "use `latency_specialized`, or `auto` for the standard path",
        {"additional_config.decode_backend": "latency_specialized"},
    )


@rule("specialized.gpu", reason="this GPU (SM100/103)")
def gpu(d: Proposal) -> Hit | None:
    """The GPU is of the SM100 family (B200, B300, GB200, GB300)."""
    if d.capability is None or has_specialized(d.capability):
        return None
    found = f"compute capability {d.capability[0]}.{d.capability[1]}"
    return Hit(found, "run the standard path on this GPU", {"additional_config.decode_backend": "auto"})


@rule(
    "specialized.moe",
    reason="MoE configs but the one-group sigmoid top-16 SiTU MoE of Kimi K3",
)
def moe(d: Proposal) -> Hit | None:
    """The model has Kimi K3's MoE: SiTU 4/25, 896 experts, top-16, one group, sigmoid router."""
    if d.k3_moe:
        return None
    return Hit(
        f"the model `{d.config.model}` has another MoE",
        "serve moonshotai/Kimi-K3, or use the standard path",
        {"additional_config.decode_backend": "auto"},
    )


@rule("specialized.tp", reason="TP other than 8/16")
def tensor_parallel(d: Proposal) -> Hit | None:
    """The tensor-parallel size is 8 or 16."""
    tp = d.parallel.tp
    if tp in SPECIALIZED_TP:
        return None
    nearest = min(SPECIALIZED_TP, key=lambda size: (abs(size - tp), -size))
    return Hit(
        f"tensor_parallel_size is {tp}",
        f"use {nearest} (8 and 16 are accepted)",
        {"tensor_parallel_size": nearest},
    )


@rule("specialized.pp", reason="pipeline parallelism")
def pipeline_parallel(d: Proposal) -> Hit | None:
    """No pipeline parallelism."""
    if d.parallel.pp == 1:
        return None
    gpus = d.parallel.tp * d.parallel.pp
    changes = {"pipeline_parallel_size": 1} | (
        {"tensor_parallel_size": gpus} if gpus in SPECIALIZED_TP else {}
    )
    how = f"TP{gpus} over the same GPUs" if gpus in SPECIALIZED_TP else "TP8 or TP16 without it"
    return Hit(f"pipeline_parallel_size is {d.parallel.pp}", f"use {how}", changes)


@rule("specialized.ep", reason="expert parallelism")
def expert_parallel(d: Proposal) -> Hit | None:
    """No expert parallelism."""
    if not d.parallel.expert_parallel:
        return None
    return Hit(
        "enable_expert_parallel is set",
        "leave it out; at TP16 the experts are padded by a third instead",
        {"enable_expert_parallel": False},
    )


@rule("specialized.dbo", reason="DBO")
def ubatching(d: Proposal) -> Hit | None:
    """No dual batch overlap or microbatches."""
    if d.arg("enable_dbo", False):
        return Hit("enable_dbo is set", "leave it out", {"enable_dbo": False})
    if int(d.arg("ubatch_size", 0)) > 1:
        return Hit(f"ubatch_size is {d.arg('ubatch_size')}", "leave it out", {"ubatch_size": 0})
    return None


@rule("specialized.dcp", reason="decode context parallel other than 1 or TP")
def decode_context_parallel(d: Proposal) -> Hit | None:
    """Decode context parallelism is off or spans the whole TP group."""
    dcp, tp = d.parallel.dcp, d.parallel.tp
    if dcp in (1, tp):
        return None
    return Hit(
        f"decode_context_parallel_size is {dcp}",
        f"decode context parallel must be 1 or {tp}: {tp} keeps the longest context, 1 the lowest latency",
        {"decode_context_parallel_size": tp},
    )


@rule("specialized.sleep", reason="sleep mode")
def sleep_mode(d: Proposal) -> Hit | None:
    """No sleep mode."""
    if not d.arg("enable_sleep_mode", False):
        return None
    return Hit("enable_sleep_mode is set", "leave it out", {"enable_sleep_mode": False})


@rule("specialized.lora", reason="LoRA")
def lora(d: Proposal) -> Hit | None:
    """No LoRA."""
    if not d.arg("enable_lora", False):
        return None
    return Hit(
        "enable_lora is set", "leave it out, or merge the adapter into the weights", {"enable_lora": False}
    )


@rule("specialized.v2-runner", reason="the V1 model runner")
def v2_runner(d: Proposal) -> Hit | None:
    """Model Runner V2 is used: not switched off, and no feature falls back to V1."""
    if d.arg("watermark_config") or d.arg("attention_config.hisparse_config"):
        return None
    flag = d.env_flag("VLLM_USE_V2_MODEL_RUNNER")
    if flag is False:
        return Hit("VLLM_USE_V2_MODEL_RUNNER=0", "remove it", {"env.VLLM_USE_V2_MODEL_RUNNER": "1"})
    if flag:
        return None
    cause = _v1_fallback(d)
    return None if cause is None else Hit(f"{cause}, which falls back to the V1 runner", "leave it out")


def _v1_fallback(d: Proposal) -> str | None:
    """The feature for which vLLM quietly takes the V1 runner."""
    spec = d.speculator or {}
    if d.method in {"suffix", "custom_class"}:
        return f"speculative method `{d.method}`"
    if spec.get("parallel_drafting") and d.method not in {"dflash", "dspark"}:
        return "parallel drafting"
    if spec.get("use_heterogeneous_vocab"):
        return "a drafter with its own vocabulary"
    if d.arg("distributed_executor_backend") == "external_launcher" and d.parallel.pp > 1:
        return "pipeline parallelism with external_launcher"
    return None


@rule("specialized.torch-compile", reason="torch.compile")
def torch_compile(d: Proposal) -> Hit | None:
    """Not the stock torch.compile mode."""
    mode = str(d.arg("compilation_config.mode", "")).upper()
    # breakable graphs, on by default for Kimi K3, reset the compilation mode
    breakable = d.env_flag("VLLM_USE_BREAKABLE_CUDAGRAPH") is not False
    if mode not in {"1", "STOCK_TORCH_COMPILE"} or breakable or d.arg("enforce_eager", False):
        return None
    return Hit(
        "compilation_config.mode is STOCK_TORCH_COMPILE and VLLM_USE_BREAKABLE_CUDAGRAPH=0",
        "leave the mode out",
        {"env.VLLM_USE_BREAKABLE_CUDAGRAPH": "1"},
    )


@rule("specialized.full-graphs", reason="deployments without FULL decode CUDA graphs (e.g. enforce-eager)")
def full_graphs(d: Proposal) -> Hit | None:
    """Decode steps are captured as FULL CUDA graphs."""
    mode, cause = d.graph_mode
    if mode == "FULL":
        return None
    if d.piecewise_connector:
        how = f"drop `use_layerwise` of {d.piecewise_connector}, or use MooncakeConnector"
        return Hit(f"{cause} makes the graphs PIECEWISE", how)
    changes = {"enforce_eager": False} if cause == "enforce_eager" else {}
    return Hit(f"{cause}, so decode graphs are {mode}", "use FULL_AND_PIECEWISE, the default", changes)


@rule("specialized.speculator", reason="speculative methods but DSpark")
def speculator(d: Proposal) -> Hit | None:
    """Speculation is off or DSpark."""
    if d.method in {None, "dspark"}:
        return None
    return Hit(
        f"speculative method is `{d.method}`",
        "use `dspark` with a Kimi K3 drafter, or no speculation",
        {"speculative_config.method": "dspark"},
    )


@rule("specialized.adaptive-verification", reason="adaptive verification")
def adaptive_verification(d: Proposal) -> Hit | None:
    """No adaptive verification."""
    if not (d.speculator or {}).get("enable_adaptive_verification"):
        return None
    key = "speculative_config.enable_adaptive_verification"
    return Hit(
        "enable_adaptive_verification is set", "leave it out: verify steps must be uniform", {key: False}
    )


@rule(
    "specialized.kda-dtypes",
    reason="KDA cache dtypes other than a BF16 conv state and an FP32 recurrent state (mamba cache dtype)",
)
def kda_dtypes(d: Proposal) -> Hit | None:
    """The KDA cache has a BF16 convolution window and an FP32 recurrent state."""
    conv, recurrent = d.kda_dtypes
    if (conv, recurrent) == ("bfloat16", "float32"):
        return None
    wrong = []
    if conv != "bfloat16":
        wrong.append(f"convolution window {conv} (must be BF16)")
    if recurrent != "float32":
        wrong.append(f"recurrent state {recurrent} (recurrent must be FP32)")
    keys = {"mamba_cache_dtype": "auto", "mamba_ssm_cache_dtype": "auto"}
    changes = {key: value for key, value in keys.items() if d.arg(key, "auto") != "auto"}
    return Hit(f"KDA cache: {', '.join(wrong)}", "leave both at `auto`, with a BF16 model", changes)


@rule("specialized.replayssm", reason="ReplaySSM / RecoverSSM (--use-replayssm)")
def replayssm(d: Proposal) -> Hit | None:
    """No ReplaySSM."""
    if not d.arg("use_replayssm", False):
        return None
    return Hit(
        "use_replayssm is set",
        "leave it out; it saves cache blocks but excludes the specialized path",
        {"use_replayssm": False},
    )


@rule("specialized.drafts", reason="more than 7 speculative tokens")
def drafts(d: Proposal) -> Hit | None:
    """At most 7 speculative tokens."""
    if d.draft_tokens <= SPECIALIZED_DRAFTS:
        return None
    fitting = budget.specialized_requests(SPECIALIZED_DRAFTS)
    return Hit(
        f"num_speculative_tokens is {d.draft_tokens}",
        f"use {SPECIALIZED_DRAFTS}; up to {fitting} concurrent requests then run specialized",
        {"speculative_config.num_speculative_tokens": SPECIALIZED_DRAFTS},
    )


@rule("specialized.aux-stream", reason="the AttnRes aux stream")
def aux_stream(d: Proposal) -> Hit | None:
    """Not VLLM_KIMI_K3_AUX_ATTN_RES_STREAM together with speculation."""
    if d.method is None or not d.env_flag("VLLM_KIMI_K3_AUX_ATTN_RES_STREAM"):
        return None
    return Hit(
        "VLLM_KIMI_K3_AUX_ATTN_RES_STREAM=1 with speculation",
        "remove it",
        {"env.VLLM_KIMI_K3_AUX_ATTN_RES_STREAM": "0"},
    )


RULES = tuple(_rules.rules)
