"""Arguments and versions that do not go together: vLLM refuses them, or they fail later."""

from __future__ import annotations

from k3ctl.facts.k3 import K3
from k3ctl.planning import memory, prefix
from k3ctl.planning.proposal import Proposal
from k3ctl.planning.rules.base import Effect, Hit, RuleSet

HMA_CONNECTORS = (
    "MooncakeConnector",
    "MooncakeStoreConnector",
    "NixlConnector",
    "NixlPullConnector",
    "NixlPushConnector",
    "MoRIIOConnector",
    "MultiConnector",
    "OffloadingConnector",
    "SimpleCPUOffloadConnector",
    "HiSparseConnector",
    "DecodeBenchConnector",
)
"""KV connectors that keep the hybrid cache manager, without which a model with KDA state cannot start."""

_rules = RuleSet(
    effect=Effect.REFUSED,
    source="vllm/config",
    date="2026-09-23",
    vllm=">=0.27,<0.34",
    specialized=False,
)
rule = _rules.rule


@rule(
    "memory.kda-blocks",
    vllm=">=0.33.0,<0.34",
    source="vllm: `max_num_seqs (…) exceeds available Mamba cache blocks (…)`",
)
def kda_blocks(d: Proposal) -> Hit | None:
    """Every one of `max_num_seqs` requests gets its KDA blocks."""
    if not d.whole_k3 or not d.gpu_bytes or d.parallel.tp not in (1, 2, 4, 8, 16, 32):
        return None
    plan = memory.plan(d.memory_settings)
    if plan.blocks <= 0 or d.max_num_seqs <= plan.blocks:
        return None
    return Hit(
        f"max_num_seqs {d.max_num_seqs} > {plan.blocks} cache blocks",
        f"set max_num_seqs to at most {plan.blocks}",
        {"max_num_seqs": plan.blocks},
    )


@rule("parallel.heads", source="vllm: attention heads are divided by TP")
def heads(d: Proposal) -> Hit | None:
    """The tensor-parallel size divides the 96 heads."""
    if K3.heads % d.parallel.tp == 0:
        return None
    return Hit(
        f"TP{d.parallel.tp} does not divide {K3.heads} heads", "use 8 or 16", {"tensor_parallel_size": 8}
    )


@rule("parallel.dcp", source="vllm/config/parallel.py")
def dcp_divides(d: Proposal) -> Hit | None:
    """The context-parallel size divides the tensor-parallel size."""
    if d.parallel.tp % d.parallel.dcp == 0:
        return None
    return Hit(
        f"decode_context_parallel_size {d.parallel.dcp} does not divide TP{d.parallel.tp}",
        f"use 1 or {d.parallel.tp}",
        {"decode_context_parallel_size": d.parallel.tp},
    )


@rule(
    "parallel.ray-nnodes",
    source="vllm/config/parallel.py: --nnodes means the mp backend",
)
def ray_nnodes(d: Proposal) -> Hit | None:
    """Ray and `--nnodes` are not combined."""
    if d.arg("distributed_executor_backend") != "ray" or int(d.arg("nnodes", 1)) == 1:
        return None
    return Hit("distributed_executor_backend is ray and nnodes is set", "drop nnodes; Ray places the workers")


@rule(
    "drafter.version",
    vllm=">=0,<0.27.1",
    effect=Effect.FAILS,
    source="https://github.com/ai-dynamo/dynamo/issues/12843",
)
def drafter_version(d: Proposal) -> Hit | None:
    """vLLM is new enough for a Kimi K3 DSpark drafter."""
    if d.method != "dspark":
        return None
    return Hit(f"vLLM {d.vllm} dies on a Kimi K3 DSpark drafter", "use vLLM 0.27.1 or newer")


@rule("drafter.runner", vllm=">=0.33.0,<0.34", source="vllm/config/vllm.py")
def drafter_runner(d: Proposal) -> Hit | None:
    """DSpark runs on Model Runner V2, which neither a variable nor DBO has switched off."""
    if d.method != "dspark":
        return None
    if d.env_flag("VLLM_USE_V2_MODEL_RUNNER") is False:
        return Hit(
            "VLLM_USE_V2_MODEL_RUNNER=0 with DSpark", "remove it", {"env.VLLM_USE_V2_MODEL_RUNNER": "1"}
        )
    if d.arg("enable_dbo", False):
        return Hit(
            "enable_dbo falls back to Model Runner V1, without DSpark", "leave it out", {"enable_dbo": False}
        )
    return None


@rule(
    "prefix-caching.version",
    vllm=">=0.27,<0.28",
    effect=Effect.FAILS,
    source="https://github.com/vllm-project/vllm/issues/50147",
)
def prefix_caching_version(d: Proposal) -> Hit | None:
    """Prefix caching is off on vLLM 0.27, where it ends in illegal memory accesses."""
    if not d.prefix_caching:
        return None
    return Hit(
        "prefix caching on vLLM 0.27", "set enable_prefix_caching to false", {"enable_prefix_caching": False}
    )


@rule(
    "prefix-caching.retention",
    vllm=">=0.33.0,<0.34",
    source="vllm/v1/core/kv_cache_coordinator.py: a positive interval is a multiple of the scheduler's block",
)
def retention(d: Proposal) -> Hit | None:
    """`prefix_cache_retention_interval` is 0 or a multiple of the cache block."""
    plan = prefix.of(d)
    if plan is None or plan.interval % plan.block_tokens == 0:
        return None
    near = max(round(plan.interval / plan.block_tokens), 1) * plan.block_tokens
    return Hit(
        f"prefix_cache_retention_interval {plan.interval} is no multiple of the block of {plan.block_tokens} tokens",
        f"use {near}, or 0",
        {"prefix_cache_retention_interval": near},
    )


@rule(
    "trust-remote-code",
    source="vLLM's start-up error for this repository",
)
def trust_remote_code(d: Proposal) -> Hit | None:
    """The checkpoint's own tokenizer code may run."""
    if d.arg("trust_remote_code", False) or "kimi-k3" not in d.config.model.lower():
        return None
    return Hit("trust_remote_code is not set", "set it", {"trust_remote_code": True})


@rule(
    "connector.hybrid",
    vllm=">=0.33.0,<0.34",
    effect=Effect.FAILS,
    source="vllm/config/vllm.py: a connector without HMA turns the hybrid cache manager off",
)
def hybrid_connector(d: Proposal) -> Hit | None:
    """The KV connector keeps the hybrid cache manager that KDA state needs."""
    wrong = [str(c["kv_connector"]) for c in d.connectors if c.get("kv_connector") not in HMA_CONNECTORS]
    if not wrong:
        return None
    return Hit(
        f"{', '.join(wrong)} does not support a hybrid cache",
        "use MooncakeConnector, NixlConnector or OffloadingConnector",
    )


@rule("allreduce.mnnvl", effect=Effect.FAILS, source="https://github.com/vllm-project/vllm/issues/51986")
def allreduce_mnnvl(d: Proposal) -> Hit | None:
    """Ranks without a common NVLink domain do not get FlashInfer's all-reduce, which would choose NVLink."""
    requires = d.config.profile.requires
    if d.parallel.tp == 1:
        return None
    apart = requires.nodes > 1 and not requires.nvlink_domain
    if d.hardware is not None:
        apart = d.hardware.largest_tp < d.parallel.tp <= d.hardware.gpus
    if not apart or d.arg("compilation_config.pass_config.fuse_allreduce_rms") is False:
        return None
    return Hit(
        f"TP{d.parallel.tp} spans hosts without a common NVLink domain, and fuse_allreduce_rms is not switched off",
        "set compilation_config.pass_config.fuse_allreduce_rms to false",
        {"compilation_config.pass_config.fuse_allreduce_rms": False},
    )


RULES = tuple(_rules.rules)
