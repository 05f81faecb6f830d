"""What the specialized path needs and vLLM does not check: it fails late, hangs, or answers wrongly.

Found by reading vLLM 0.33.0; not tried on hardware.
"""

from __future__ import annotations

from k3ctl.checks.multicast import FORBIDDING
from k3ctl.planning.proposal import Proposal
from k3ctl.planning.rules.base import Effect, Hit, RuleSet

FP8_PREFILL_BACKENDS = ("FLASHINFER", "TRTLLM_RAGGED", "TOKENSPEED_MLA")
"""MLA prefill backends that take FP8 queries."""
TRTLLM_MOE = ("auto", "flashinfer_trtllm")
"""MoE backends that leave the weights in the layout which the specialized experts read."""
MULTICAST_OFF = FORBIDDING | {"VLLM_BATCH_INVARIANT": "1"}
"""Variables that take NVLink multicast away (VLLM_BATCH_INVARIANT sets NCCL_NVLS_ENABLE=0 itself)."""

_rules = RuleSet(
    effect=Effect.FAILS,
    source="vllm/models/kimi_k3/nvidia/specialized_decode",
    date="2026-09-23",
    vllm=">=0.33.0,<0.34",
)
rule = _rules.rule


@rule("specialized.fp8-kv", source="specialized_decode/cutedsl/mla/query.py, mla/dcp.py")
def fp8_kv(d: Proposal) -> Hit | None:
    """The MLA cache is plain FP8: every specialized kernel writes and reads FP8 bytes."""
    if d.fp8_kv:
        return None
    return Hit(
        f"kv_cache_dtype is `{d.kv_dtype}`",
        "use `fp8`, with use_prefill_query_quantization and an FP8 MLA prefill backend",
        {
            "kv_cache_dtype": "fp8",
            "attention_config.use_prefill_query_quantization": True,
            "attention_config.mla_prefill_backend": "TRTLLM_RAGGED",
        },
    )


@rule(
    "fp8-kv.prefill",
    specialized=False,
    source="vllm/models/kimi_k3/nvidia/mla.py, model_executor/layers/attention/mla_attention.py",
)
def fp8_prefill(d: Proposal) -> Hit | None:
    """An FP8 cache goes with FP8 prefill queries: both attention settings, or the first prompt asserts."""
    if not d.fp8_kv or (d.capability and d.capability[0] != 10):
        return None
    quantized = bool(d.arg("attention_config.use_prefill_query_quantization", False))
    backend = str(d.arg("attention_config.mla_prefill_backend") or "automatic (FLASH_ATTN)")
    changes: dict[str, object] = {}
    missing = []
    if not quantized:
        missing.append("use_prefill_query_quantization is off")
        changes["attention_config.use_prefill_query_quantization"] = True
    if backend.upper() not in FP8_PREFILL_BACKENDS:
        missing.append(f"mla_prefill_backend is {backend}")
        changes["attention_config.mla_prefill_backend"] = "TRTLLM_RAGGED"
    if not missing:
        return None
    return Hit(
        f"FP8 cache, but {' and '.join(missing)}",
        f"set both; {', '.join(FP8_PREFILL_BACKENDS)} work",
        changes,
    )


@rule(
    "fp8-kv.hopper",
    specialized=False,
    source="model_executor/layers/attention/mla_attention.py: FP8 prefill queries are SM100 only",
)
def fp8_hopper(d: Proposal) -> Hit | None:
    """No FP8 cache on Hopper: Kimi K3 asserts FP8 prefill queries, which only SM100 has."""
    if not d.fp8_kv or not d.capability or d.capability[0] == 10:
        return None
    return Hit(
        f"kv_cache_dtype is `{d.kv_dtype}` on this GPU", "use `auto` (BF16)", {"kv_cache_dtype": "auto"}
    )


@rule("specialized.moe-backend", source="specialized_decode/cutedsl/moe/experts_runtime.py:PersistentExperts")
def moe_backend(d: Proposal) -> Hit | None:
    """The MoE backend is TRT-LLM MXFP4, whose weight layout the specialized experts read as it lies."""
    chosen = str(d.arg("moe_backend", d.arg("kernel_config.moe_backend", "auto")))
    if chosen.replace("-", "_") in TRTLLM_MOE:
        return None
    return Hit(f"moe_backend is `{chosen}`", "leave it at `auto`", {"moe_backend": "auto"})


@rule("specialized.checkpoint", source="specialized_decode/cutedsl/moe/experts_runtime.py:PersistentExperts")
def checkpoint(d: Proposal) -> Hit | None:
    """The experts are MXFP4, not NVFP4 or another quantization."""
    quantization = str(d.arg("quantization") or "")
    if "nvfp4" in d.config.model.lower() or "nvfp4" in quantization.lower():
        return Hit(
            f"the weights are NVFP4 (`{d.config.model}`)", "serve the MXFP4 checkpoint moonshotai/Kimi-K3"
        )
    return None


@rule("specialized.dp", source="specialized_decode/runtime/decode.py: the expert sharding is taken once")
def data_parallel(d: Proposal) -> Hit | None:
    """No data parallelism: it changes the expert sharding that the path takes for granted."""
    if d.parallel.dp == 1:
        return None
    return Hit(
        f"data_parallel_size is {d.parallel.dp}",
        "run one server per replica behind a router",
        {"data_parallel_size": 1},
    )


@rule("specialized.eplb", source="specialized_decode/runtime/decode.py: packed copies are made once")
def eplb(d: Proposal) -> Hit | None:
    """No expert load balancing."""
    if not d.arg("enable_eplb", False):
        return None
    return Hit("enable_eplb is set", "leave it out", {"enable_eplb": False})


@rule("specialized.offload", source="specialized_decode/runtime/decode.py: packed copies are made once")
def weight_offload(d: Proposal) -> Hit | None:
    """No weights offloaded to the host."""
    if float(d.arg("cpu_offload_gb", 0)) > 0:
        return Hit(f"cpu_offload_gb is {d.arg('cpu_offload_gb')}", "leave it out", {"cpu_offload_gb": 0})
    if int(d.arg("offload_group_size", 0)) > 0:
        return Hit("weights are prefetched from the host", "leave it out", {"offload_group_size": 0})
    return None


@rule("specialized.weight-update", source="specialized_decode/runtime/decode.py: packed copies are made once")
def weight_update(d: Proposal) -> Hit | None:
    """No weight updates while serving."""
    if not d.arg("weight_transfer_config"):
        return None
    return Hit("weight_transfer_config is set", "leave it out", {"weight_transfer_config": "none"})


@rule("specialized.pcp", source="specialized_decode/runtime/decode.py")
def prefill_context_parallel(d: Proposal) -> Hit | None:
    """No prefill context parallelism."""
    size = int(d.arg("prefill_context_parallel_size", 1))
    if size == 1:
        return None
    return Hit(f"prefill_context_parallel_size is {size}", "use 1", {"prefill_context_parallel_size": 1})


@rule(
    "specialized.domain",
    source="specialized_decode/cutedsl/common/mailbox.py: peers are polled without a timeout",
)
def one_domain(d: Proposal) -> Hit | None:
    """All tensor-parallel ranks are in one NVLink domain."""
    hardware = d.hardware
    if hardware is None or hardware.largest_tp >= d.parallel.tp or d.config.profile.requires.nvlink_domain:
        return None
    fitting = max((size for size in (8, 16) if size <= hardware.largest_tp), default=None)
    how = f"TP{fitting} fits into one domain" if fitting else "join the hosts into one NVLink partition"
    changes = {"tensor_parallel_size": fitting} if fitting else {}
    return Hit(f"TP{d.parallel.tp} spans NVLink domains ({hardware.domain_list()})", how, changes)


@rule("specialized.multicast", source="oproj/prepared.py, common/twoshot.py: `needs multicast memory`")
def multicast(d: Proposal) -> Hit | None:
    """NVLink multicast works over the tensor-parallel ranks."""
    off = [f"{name}={value}" for name, value in MULTICAST_OFF.items() if d.env(name) == value]
    if off:
        changes = {f"env.{entry.partition('=')[0]}": "0" if entry.endswith("=1") else "1" for entry in off}
        return Hit(f"{', '.join(off)} switches multicast off", "remove it", changes)
    domain = d.hardware.largest_domain if d.hardware else None
    if domain is None or domain.multicast != "no":
        return None
    return Hit(
        f"no multicast on {', '.join(domain.hosts)}",
        "repair the fabric, or run the standard path",
        {"additional_config.decode_backend": "auto"},
    )


RULES = tuple(_rules.rules)
