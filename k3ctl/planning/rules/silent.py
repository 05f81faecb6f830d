"""Ways in which a server runs the standard path, in part or as a whole, without saying so."""

from __future__ import annotations

from k3ctl.errors import nearest
from k3ctl.facts.k3 import SPECIALIZED_ROWS
from k3ctl.planning import budget
from k3ctl.planning.proposal import Proposal
from k3ctl.planning.rules.base import Effect, Hit, RuleSet
from k3ctl.profiles.arguments import ADDITIONAL_CONFIG_KEYS

SINGLE_TOKEN_BACKENDS = ("CUTLASS_MLA",)
"""MLA backends whose decode graphs hold one token per request; speculation then turns FULL graphs off."""

_rules = RuleSet(
    effect=Effect.STANDARD,
    source="vllm/models/kimi_k3/nvidia/specialized_decode/runtime/decode.py:SpecializedDecode.plan",
    date="2026-09-23",
    vllm=">=0.33.0,<0.34",
)
rule = _rules.rule


@rule(
    "additional-config.key",
    specialized=False,
    platform="any",
    source="vllm: additional_config is an open mapping; keys nobody reads are accepted",
)
def unknown_key(d: Proposal) -> Hit | None:
    """Every key of `additional_config` is one that Kimi K3 reads."""
    extra = d.arg("additional_config", {})
    wrong = [key for key in extra if key not in ADDITIONAL_CONFIG_KEYS] if isinstance(extra, dict) else []
    if not wrong:
        return None
    close = nearest(wrong[0], ADDITIONAL_CONFIG_KEYS)
    how = f"did you mean `{close}`?" if close else f"known keys: {', '.join(ADDITIONAL_CONFIG_KEYS)}"
    changes = {f"additional_config.{close}": extra[wrong[0]]} if close else {}
    return Hit(f"additional_config has `{'`, `'.join(wrong)}`, which nothing reads", how, changes)


@rule("additional-config.value", specialized=False, source="vllm/models/kimi_k3/nvidia/kda.py, mla.py")
def unknown_value(d: Proposal) -> Hit | None:
    """Values in `additional_config` are ones that Kimi K3 knows."""
    extra = d.arg("additional_config", {})
    if not isinstance(extra, dict):
        return None
    for key, choices in ADDITIONAL_CONFIG_KEYS.items():
        if key != "decode_backend" and choices and extra.get(key) is not None and extra[key] not in choices:
            return Hit(f"additional_config.{key} is `{extra[key]}`", f"use one of {', '.join(choices)}")
    return None


@rule("specialized.rows", platform="any")
def rows(d: Proposal) -> Hit | None:
    """A decode step holds at most 64 rows: concurrent requests × (K + 1)."""
    concurrency = min(d.workload.concurrency or d.max_num_seqs, d.max_num_seqs)
    count = budget.rows(concurrency, d.draft_tokens)
    if count <= SPECIALIZED_ROWS:
        return None
    what = f"concurrency {concurrency}" if d.workload.concurrency else f"max_num_seqs {concurrency}"
    fitting = budget.specialized_requests(d.draft_tokens)
    drafts = budget.most_drafts(concurrency, d.draft_tokens)
    changes: dict[str, object] = {"max_num_seqs": fitting}
    how = f"at most {fitting} requests with K={d.draft_tokens}"
    if drafts is not None and d.method is not None:
        how += f", or K={drafts} for {concurrency}" if drafts else f", or no speculation for {concurrency}"
        if d.workload.concurrency:
            key = "speculative_config.num_speculative_tokens" if drafts else "speculative_config"
            changes = {key: drafts or "none"}
    return Hit(f"{what} × q {d.query} = {count} rows > {SPECIALIZED_ROWS}", how, changes)


@rule("specialized.max-num-seqs")
def max_num_seqs(d: Proposal) -> Hit | None:
    """`max_num_seqs` does not admit more requests than run specialized."""
    if d.workload.concurrency is None or budget.rows(d.max_num_seqs, d.draft_tokens) <= SPECIALIZED_ROWS:
        return None
    if budget.rows(d.workload.concurrency, d.draft_tokens) > SPECIALIZED_ROWS:
        return None
    fitting = budget.specialized_requests(d.draft_tokens)
    return Hit(
        f"max_num_seqs {d.max_num_seqs} admits {budget.rows(d.max_num_seqs, d.draft_tokens)} rows in a burst",
        f"set max_num_seqs to {fitting}: further requests then wait instead of slowing all",
        {"max_num_seqs": fitting},
    )


@rule("specialized.capture-sizes", source="vllm/config/vllm.py:_set_cudagraph_sizes, cudagraph_utils.py")
def capture_sizes(d: Proposal) -> Hit | None:
    """Every decode size up to 64 rows has a captured graph of at most 64 rows."""
    if d.graph_mode[0] != "FULL":
        return None
    captured = budget.captured_rows(d.max_num_seqs, d.draft_tokens, d.capture_sizes, d.max_capture_size)
    most = min(budget.specialized_requests(d.draft_tokens), d.max_num_seqs)
    needed = budget.rows(most, d.draft_tokens)
    if captured and captured[-1] >= needed:
        return None
    has = f"up to {captured[-1]} rows" if captured else "none"
    return Hit(
        f"captured decode graphs of at most 64 rows: {has}; {most} requests need {needed}",
        "leave the capture sizes at their default",
        {"cudagraph_capture_sizes": "none", "max_cudagraph_capture_size": "none"},
    )


@rule("specialized.graph-downgrade", source="vllm/config/compilation.py:resolve_cudagraph_mode_and_sizes")
def graph_downgrade(d: Proposal) -> Hit | None:
    """The attention backend can capture verify steps; else the graphs become PIECEWISE after the check."""
    backend = str(d.arg("attention_backend", d.arg("attention_config.backend", "")) or "").upper()
    if d.method is None or backend not in SINGLE_TOKEN_BACKENDS:
        return None
    return Hit(
        f"{backend} captures one token per request, so speculation turns FULL graphs off after vLLM's check",
        "leave the attention backend to vLLM",
        {"attention_backend": "none", "attention_config.backend": "none"},
    )


@rule("specialized.dynamic-drafts")
def dynamic_drafts(d: Proposal) -> Hit | None:
    """One K for every batch size: graphs of another K hold the standard kernels."""
    key = "num_speculative_tokens_per_batch_size"
    if not (d.speculator or {}).get(key):
        return None
    return Hit(f"{key} changes K with the batch", "leave it out", {f"speculative_config.{key}": "none"})


@rule("specialized.prefill-mixed")
def prefill_mixed(d: Proposal) -> Hit | None:
    """No prefill in the same step: one prompt chunk sends all rows of its step down the standard path."""
    kind = d.arg("kv_transfer_config.kv_role")
    if d.workload.concurrency in (None, 1) or kind == "kv_consumer":
        return None
    return Hit(
        f"with {d.workload.concurrency} concurrent requests, arriving prompts share steps with running ones",
        "expect a share below 100 % of the decode steps; a prefill/decode pair (`gb300-pd-decode`) avoids it",
    )


RULES = tuple(_rules.rules)
