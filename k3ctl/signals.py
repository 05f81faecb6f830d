"""What a server's numbers are called, and when an engine counts as stalled. Standard library only.

Names follow vLLM 0.33.0 (``v1/metrics/loggers.py``, ``v1/spec_decode/metrics.py``) and the runtime's witness. This is
the one table of them: the supervisor, the live screens, the benchmark and the memory plan read it.
"""

from __future__ import annotations

PREFIX = "vllm:"
"""Every series of vLLM's own starts with it."""

PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
PREEMPTIONS = "vllm:num_preemptions_total"
PREFIX_QUERIES = "vllm:prefix_cache_queries_total"
PREFIX_HITS = "vllm:prefix_cache_hits_total"
"""Queries and hits of the prefix cache count tokens."""
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED_TOKENS = "vllm:spec_decode_num_accepted_tokens_total"
ACCEPTED_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
CORRUPTED = "vllm:corrupted_requests_total"
"""Exists only with NaN checks on."""
FINISHED = "vllm:request_success_total"
REJECTIONS = "vllm:admission_rejections_total"

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"
CACHE_USED = "vllm:kv_cache_usage_perc"
"""A share from 0 to 1 in spite of its name."""
CACHE_INFO = "vllm:cache_config_info"

TTFT = "vllm:time_to_first_token_seconds"
ITL = "vllm:inter_token_latency_seconds"
TPOT = "vllm:request_time_per_output_token_seconds"
E2E = "vllm:e2e_request_latency_seconds"
QUEUE = "vllm:request_queue_time_seconds"
ITERATION_TOKENS = "vllm:iteration_tokens_total"
PROMPT_LENGTH = "vllm:request_prompt_tokens"
"""Histograms: seconds, except tokens: per engine step, and per finished request, in the last two."""

PROCESS_START = "process_start_time_seconds"

STEPS = "k3_steps_total"
ROWS = "k3_rows_total"
TOKENS = "k3_tokens_total"
WITNESS_INFO = "k3_witness_info"
"""The runtime's witness: counters by path, and who is counting."""

STALLED_AFTER_S = 30.0


def stalled(running: float, still_s: float, after_s: float = STALLED_AFTER_S) -> bool:
    """Whether an engine stalls: requests run, and nothing got done for ``after_s`` seconds.

    ``still_s`` is the time since any sign of work moved: tokens generated or read, engine steps, the share of the
    cache in use (a long prompt moves nothing else). The supervisor, the live screen and triage mean this by "stalled".
    """
    return running > 0 and still_s >= after_s
