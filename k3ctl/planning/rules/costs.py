"""What works, but costs memory, speed or sight."""

from __future__ import annotations

from k3ctl.planning import budget, memory
from k3ctl.planning.proposal import Proposal
from k3ctl.planning.rules.base import Effect, Hit, RuleSet

ANY = ">=0"
"""Rules about the workload hold for every vLLM."""

_rules = RuleSet(
    effect=Effect.COST,
    source="vllm",
    date="2026-09-23",
    vllm=">=0.27,<0.34",
    specialized=False,
)
rule = _rules.rule


@rule(
    "connector.canary",
    source="https://github.com/vllm-project/vllm/issues/52627, /53084",
)
def connector_canary(d: Proposal) -> Hit | None:
    """Transferred state is checked by its effect."""
    if not d.connectors:
        return None
    return Hit(
        f"state goes through {d.connectors[0]['kv_connector']}; two faults changed answers silently",
        "compare a fixed-seed greedy answer, cold and transferred, before trusting it",
    )


@rule(
    "utilization",
    source="InferenceX perf changelog, B200/B300 entries, 2026-07 to 2026-09",
)
def utilization(d: Proposal) -> Hit | None:
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
    platform="any",
    source="vllm: requests beyond max_num_seqs wait",
)
def admission(d: Proposal) -> Hit | None:
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
    source="vllm/models/kimi_k3/nvidia/kda.py; block geometry",
)
def eight_drafts(d: Proposal) -> Hit | None:
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
    source="vllm/models/kimi_k3/nvidia/kda.py",
)
def sequence_buffers(d: Proposal) -> Hit | None:
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
    source="vllm/models/kimi_k3/nvidia/kda.py",
)
def prefix_caching_off(d: Proposal) -> Hit | None:
    """Prefix caching is on: it was switched off for a fault of 0.27, and carries the KDA checkpoints."""
    if d.prefix_caching or d.config.profile.status == "validated":
        return None
    return Hit(
        "prefix caching is off, so KDA checkpoints inside prompts are off, too",
        "leave it on",
        {"enable_prefix_caching": True},
    )


@rule(
    "observability.graphs",
    specialized=True,
    source="vllm: --cudagraph-metrics logs graph sizes",
)
def graph_metrics(d: Proposal) -> Hit | None:
    """Graph modes and sizes are logged, the only outside evidence beside the witness."""
    if d.arg("cudagraph_metrics", False):
        return None
    return Hit("cudagraph_metrics is off", "set it", {"cudagraph_metrics": True})


@rule(
    "observability.itl",
    source="vllm/v1/metrics/buckets.py: the first bucket ends at 10 ms",
)
def latency_buckets(d: Proposal) -> Hit | None:
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
