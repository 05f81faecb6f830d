"""Rules for any Kimi K3 deployment: hardware, versions, memory, arguments that exclude each other, costs."""

from __future__ import annotations

from k3ctl.planning import budget, memory
from k3ctl.planning.deployment import Deployment
from k3ctl.planning.hardware import PRODUCTS
from k3ctl.planning.rules.base import Effect, Hit, RuleSet

CHECKPOINT_MINIMUM_GB = 1680
"""GPU memory, as sold, that the MXFP4 checkpoint needs over all GPUs (vLLM recipe, corrected 2026-09-12)."""
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

ANY = ">=0"
"""Rules about the machine or the profile hold for every vLLM."""

_rules = RuleSet(
    effect=Effect.IMPOSSIBLE,
    source="the profile's `requires`",
    date="2026-09-23",
    vllm=">=0.27,<0.34",
    specialized=False,
)
rule = _rules.rule


@rule("requires.gpu", platform="any", vllm=ANY)
def gpu_product(d: Deployment) -> Hit | None:
    """The GPUs are of a product that the profile is for."""
    wanted, hardware = d.config.profile.requires.gpu, d.hardware
    if not wanted or hardware is None or hardware.product in wanted:
        return None
    have = hardware.product or ("an unknown GPU" if hardware.gpus else "no GPU")
    return Hit(f"needs {'/'.join(wanted)}, found {have}", "choose a profile for this hardware: `k3ctl plan`")


@rule("requires.gpus", vllm=ANY)
def gpu_count(d: Deployment) -> Hit | None:
    """There are as many GPUs as TP × PP × DP."""
    hardware, needed = d.hardware, d.parallel.gpus
    if hardware is None or hardware.gpus >= needed:
        return None
    names = f" on {', '.join(hardware.hosts)}" if hardware.hosts else ""
    return Hit(f"needs {needed} GPUs, found {hardware.gpus}{names}", "add hosts, or choose a smaller profile")


@rule("requires.nvlink-domain", vllm=ANY)
def nvlink_domain(d: Deployment) -> Hit | None:
    """The GPUs of a profile for one NVLink domain are in one NVLink domain."""
    requires, hardware = d.config.profile.requires, d.hardware
    if not requires.nvlink_domain or hardware is None or hardware.largest_tp >= d.parallel.tp:
        return None
    return Hit(
        f"needs {d.parallel.tp} GPUs in one NVLink domain; the largest offers {hardware.largest_tp} "
        f"({hardware.domain_list()})",
        "put the trays into one partition of the rack, or use a profile for fewer GPUs",
    )


@rule("requires.driver", vllm=ANY)
def driver(d: Deployment) -> Hit | None:
    """The NVIDIA driver is recent enough."""
    from packaging.specifiers import SpecifierSet

    wanted, found = d.config.profile.requires.driver, d.hardware.driver if d.hardware else ""
    if not wanted or not found or SpecifierSet(wanted).contains(found, prereleases=True):
        return None
    return Hit(f"driver {found}, needs {wanted}", "install a newer driver branch")


@rule("requires.vllm", platform="any", vllm=ANY, source="the profile's `requires.vllm`")
def vllm_version(d: Deployment) -> Hit | None:
    """The vLLM that will run it is one the profile was written for."""
    from packaging.specifiers import SpecifierSet

    wanted = d.config.profile.requires.vllm
    if SpecifierSet(wanted).contains(d.vllm, prereleases=True):
        return None
    return Hit(f"vLLM {d.vllm}, needs {wanted}", "install a vLLM in that range")


@rule("specialized.vllm", vllm=">=0,<0.33", specialized=True, source="vllm wheels: absent before 0.33.0")
def specialized_version(d: Deployment) -> Hit | None:
    """vLLM is new enough to have the specialized path; older ones ignore the key."""
    return Hit(f"vLLM {d.vllm} has no specialized decode", "use vLLM 0.33.0")


@rule(
    "memory.checkpoint",
    vllm=ANY,
    source="https://github.com/vllm-project/recipes/pull/964",
)
def checkpoint_memory(d: Deployment) -> Hit | None:
    """The GPUs together hold the checkpoint."""
    gb = d.hardware.nominal_gb if d.hardware else 0
    if not gb:
        token = next(iter(d.config.profile.requires.gpu), "")
        gb = PRODUCTS[token].nominal_gb if token in PRODUCTS else 0
    gpus = d.parallel.gpus
    if not gb or gpus * gb >= CHECKPOINT_MINIMUM_GB:
        return None
    # two is the smallest step that keeps TP a divisor of the heads
    needed = next(n for n in (8, 16, 32) if n * gb >= CHECKPOINT_MINIMUM_GB)
    return Hit(
        f"{gpus} x {gb} = {gpus * gb} GB < {CHECKPOINT_MINIMUM_GB} GB minimum for the MXFP4 checkpoint",
        f"use {needed} GPUs",
        {"tensor_parallel_size": needed},
    )


@rule("memory.fit", vllm=">=0.33.0,<0.34", source="k3ctl's memory plan (an estimate)")
def memory_fit(d: Deployment) -> Hit | None:
    """Weights, buffers and at least one sequence fit into each GPU."""
    if not d.gpu_bytes or d.parallel.tp not in (1, 2, 4, 8, 16, 32):
        return None
    plan, gib = memory.plan(d.memory_settings, d.workload.sequence_tokens), memory.GIB
    if plan.cache_bytes <= 0:
        weights = plan.weights.total / gib
        buffers = sum(item.size_bytes for item in plan.items) / gib - weights
        return Hit(
            f"per GPU: weights {weights:.1f} GiB and {buffers:.1f} GiB of buffers do not fit into "
            f"{plan.budget_bytes / gib:.1f} GiB ({d.gpu_gib:.1f} GiB × utilization)",
            _roomier(d),
        )
    if plan.fits:
        return None
    return Hit(
        f"{plan.cache_bytes / gib:.1f} GiB of cache hold no sequence of {plan.sequence_tokens:,} tokens",
        f"set max_model_len to at most {plan.longest_single_tokens:,}",
        {"max_model_len": plan.longest_single_tokens},
    )


def _roomier(d: Deployment) -> str:
    if d.parallel.tp == 16 and not d.parallel.expert_parallel:
        return "use expert parallelism (TP16 pads the experts by a third), or more GPUs"
    return "use more GPUs: TP16, or TP8 × PP2 over two nodes"


@rule(
    "memory.kda-blocks",
    vllm=">=0.33.0,<0.34",
    effect=Effect.REFUSED,
    source="vllm: `max_num_seqs (…) exceeds available Mamba cache blocks (…)`",
)
def kda_blocks(d: Deployment) -> Hit | None:
    """Every one of `max_num_seqs` requests gets its KDA blocks."""
    if not d.gpu_bytes or d.parallel.tp not in (1, 2, 4, 8, 16, 32):
        return None
    plan = memory.plan(d.memory_settings)
    if plan.blocks <= 0 or d.max_num_seqs <= plan.blocks:
        return None
    return Hit(
        f"max_num_seqs {d.max_num_seqs} > {plan.blocks} cache blocks",
        f"set max_num_seqs to at most {plan.blocks}",
        {"max_num_seqs": plan.blocks},
    )


@rule("parallel.heads", effect=Effect.REFUSED, source="vllm: attention heads are divided by TP")
def heads(d: Deployment) -> Hit | None:
    """The tensor-parallel size divides the 96 heads."""
    if 96 % d.parallel.tp == 0:
        return None
    return Hit(f"TP{d.parallel.tp} does not divide 96 heads", "use 8 or 16", {"tensor_parallel_size": 8})


@rule("parallel.dcp", effect=Effect.REFUSED, source="vllm/config/parallel.py")
def dcp_divides(d: Deployment) -> Hit | None:
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
    effect=Effect.REFUSED,
    source="vllm/config/parallel.py: --nnodes means the mp backend",
)
def ray_nnodes(d: Deployment) -> Hit | None:
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
def drafter_version(d: Deployment) -> Hit | None:
    """vLLM is new enough for a Kimi K3 DSpark drafter."""
    if d.method != "dspark":
        return None
    return Hit(f"vLLM {d.vllm} dies on a Kimi K3 DSpark drafter", "use vLLM 0.27.1 or newer")


@rule("drafter.runner", vllm=">=0.33.0,<0.34", effect=Effect.REFUSED, source="vllm/config/vllm.py")
def drafter_runner(d: Deployment) -> Hit | None:
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
def prefix_caching_version(d: Deployment) -> Hit | None:
    """Prefix caching is off on vLLM 0.27, where it ends in illegal memory accesses."""
    if not d.prefix_caching:
        return None
    return Hit(
        "prefix caching on vLLM 0.27", "set enable_prefix_caching to false", {"enable_prefix_caching": False}
    )


@rule(
    "trust-remote-code",
    effect=Effect.REFUSED,
    source="vLLM's start-up error for this repository",
)
def trust_remote_code(d: Deployment) -> Hit | None:
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
def hybrid_connector(d: Deployment) -> Hit | None:
    """The KV connector keeps the hybrid cache manager that KDA state needs."""
    wrong = [str(c["kv_connector"]) for c in d.connectors if c.get("kv_connector") not in HMA_CONNECTORS]
    if not wrong:
        return None
    return Hit(
        f"{', '.join(wrong)} does not support a hybrid cache",
        "use MooncakeConnector, NixlConnector or OffloadingConnector",
    )


@rule(
    "connector.canary",
    effect=Effect.COST,
    source="https://github.com/vllm-project/vllm/issues/52627, /53084",
)
def connector_canary(d: Deployment) -> Hit | None:
    """Transferred state is checked by its effect."""
    if not d.connectors:
        return None
    return Hit(
        f"state goes through {d.connectors[0]['kv_connector']}; two faults changed answers silently",
        "compare a fixed-seed greedy answer, cold and transferred, before trusting it",
    )


@rule(
    "utilization",
    effect=Effect.COST,
    source="InferenceX perf changelog, B200/B300 entries, 2026-07 to 2026-09",
)
def utilization(d: Deployment) -> Hit | None:
    """Memory beside vLLM's budget is left for the MXFP4 workspace."""
    value = float(d.arg("gpu_memory_utilization", 0.92))
    if not d.capability or d.capability[0] != 10 or value <= 0.90:
        return None
    if value < 0.95 and (d.workload.concurrency or d.max_num_seqs) < 56:
        return None
    return Hit(
        f"gpu_memory_utilization {value}: 0.95 ran out of memory, 0.92 did from 56 requests on",
        "use 0.90",
        {"gpu_memory_utilization": 0.9},
    )


@rule(
    "admission",
    vllm=ANY,
    effect=Effect.COST,
    platform="any",
    source="vllm: requests beyond max_num_seqs wait",
)
def admission(d: Deployment) -> Hit | None:
    """As many requests are admitted as are expected at once."""
    expected = d.workload.concurrency
    if expected is None or expected <= d.max_num_seqs:
        return None
    how, changes = f"set max_num_seqs to {expected}", {"max_num_seqs": str(expected)}
    drafts = budget.most_drafts(expected)
    if d.specialized and d.method is not None and drafts is not None and drafts < d.draft_tokens:
        key = "speculative_config.num_speculative_tokens" if drafts else "speculative_config"
        changes[key] = str(drafts) if drafts else "none"
        how += f" with K={drafts}" if drafts else " without speculation"
        how += ", with which its decode steps stay specialized"
    return Hit(f"{expected} requests expected, {d.max_num_seqs} admitted: the others wait", how, changes)


@rule(
    "drafts.eight",
    vllm=">=0.33.0,<0.34",
    effect=Effect.COST,
    source="vllm/models/kimi_k3/nvidia/kda.py; block geometry",
)
def eight_drafts(d: Deployment) -> Hit | None:
    """K stays at 7 or less, where the KDA page fits its block and the fast verify kernels apply."""
    if d.draft_tokens < 8:
        return None
    return Hit(
        f"K={d.draft_tokens} enlarges the cache block and leaves the packed KDA verify kernels",
        "use K=7",
        {"speculative_config.num_speculative_tokens": 7},
    )


@rule(
    "max-num-seqs.buffers",
    vllm=">=0.33.0,<0.34",
    effect=Effect.COST,
    source="vllm/models/kimi_k3/nvidia/kda.py",
)
def sequence_buffers(d: Deployment) -> Hit | None:
    """`max_num_seqs` is not left at 1024, which costs gigabytes of buffers per GPU."""
    if d.arg("max_num_seqs") is not None or d.parallel.tp not in (1, 2, 4, 8, 16):
        return None
    items = memory.plan(d.memory_settings).items if d.gpu_bytes else ()
    size = sum(i.size_bytes for i in items if i.name in {"FlashKDA states", "ReplaySSM records"})
    if size < memory.GIB / 2:
        return None
    return Hit(
        f"max_num_seqs is vLLM's default {d.max_num_seqs}: {size / 1e9:.1f} GB of buffers per GPU",
        "set it to the concurrency that you expect",
        {"max_num_seqs": d.workload.concurrency or 64},
    )


@rule(
    "prefix-caching.off",
    vllm=">=0.33.0,<0.34",
    effect=Effect.COST,
    source="vllm/models/kimi_k3/nvidia/kda.py",
)
def prefix_caching_off(d: Deployment) -> Hit | None:
    """Prefix caching is on: it was switched off for a fault of 0.27, and carries the KDA checkpoints."""
    if d.prefix_caching or d.config.profile.status == "verified":
        return None
    return Hit(
        "prefix caching is off, so KDA checkpoints inside prompts are off, too",
        "leave it on",
        {"enable_prefix_caching": True},
    )


@rule(
    "observability.graphs",
    effect=Effect.COST,
    specialized=True,
    source="vllm: --cudagraph-metrics logs graph sizes",
)
def graph_metrics(d: Deployment) -> Hit | None:
    """Graph modes and sizes are logged, the only outside evidence beside the witness."""
    if d.arg("cudagraph_metrics", False):
        return None
    return Hit("cudagraph_metrics is off", "set it", {"cudagraph_metrics": True})


@rule(
    "observability.itl",
    effect=Effect.COST,
    source="vllm/v1/metrics/buckets.py: the first bucket ends at 10 ms",
)
def latency_buckets(d: Deployment) -> Hit | None:
    """The inter-token latency histogram resolves Kimi K3's 1 to 10 ms."""
    buckets = d.arg("custom_histogram_buckets", {})
    if isinstance(buckets, dict) and "inter_token_latency" in buckets:
        return None
    return Hit(
        "inter-token latencies all fall into the first bucket (10 ms)",
        "set custom_histogram_buckets.inter_token_latency",
        {"custom_histogram_buckets": '{"inter_token_latency":[0.001,0.002,0.003,0.005,0.01,0.02,0.05,0.1]}'},
    )


RULES = tuple(_rules.rules)
