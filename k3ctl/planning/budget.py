"""How many tokens and requests one engine step may hold, and how many of them run specialized.

Source: vLLM 0.33.0's scheduler (``v1/core/sched/scheduler.py``), ``SpeculativeConfig`` and the defaults in
``engine/arg_utils.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3ctl.facts.k3 import SPECIALIZED_DRAFTS, SPECIALIZED_ROWS


def draft_slots(method: str | None, draft_tokens: int, parallel_drafting: bool = False) -> int:
    """Input slots that drafting takes per scheduled request, beyond the tokens to verify."""
    if method is None or method in {"dflash", "dspark"}:
        return 0
    if parallel_drafting:
        return draft_tokens if method == "draft_model" else draft_tokens - 1
    return 1 if method == "draft_model" else 0


def scheduled_tokens(max_num_batched_tokens: int, running_requests: int, slots_per_request: int) -> int:
    """Tokens that a step may schedule with ``running_requests`` requests in it.

    The adaptive budget takes the draft slots of the requests that are really scheduled from the input buffer,
    not those of ``max_num_seqs`` requests.
    """
    return max(max_num_batched_tokens - slots_per_request * running_requests, 0)


@dataclass(frozen=True)
class Defaults:
    """What vLLM's server uses when the two limits are not given."""

    max_num_batched_tokens: int
    max_num_seqs: int


def defaults(gpu_bytes: int, gpu_name: str = "", performance_mode: str = "") -> Defaults:
    """vLLM's defaults by GPU memory: the high-memory tier starts at 160 GiB, the next at 70 GiB."""
    gib = gpu_bytes / 2**30
    if gib >= 160:
        found = Defaults(16_384, 1024)
    elif gib >= 70 and "a100" not in gpu_name.lower() and "gb10" not in gpu_name.lower():
        found = Defaults(8192, 1024)
    else:
        found = Defaults(2048, 256)
    if performance_mode == "throughput":
        return Defaults(2 * found.max_num_batched_tokens, 2 * found.max_num_seqs)
    return found


def rows(concurrency: int, draft_tokens: int) -> int:
    """Query tokens of a decode step: every request verifies its drafts and one more token."""
    return concurrency * (1 + draft_tokens)


def specialized_requests(draft_tokens: int) -> int:
    """Most concurrent requests whose decode steps run specialized."""
    return SPECIALIZED_ROWS // (1 + draft_tokens)


def most_drafts(concurrency: int, limit: int = SPECIALIZED_DRAFTS) -> int | None:
    """Most draft tokens with which ``concurrency`` requests still run specialized; None if none at all do."""
    fitting = [k for k in range(limit + 1) if rows(concurrency, k) <= SPECIALIZED_ROWS]
    return max(fitting, default=None)


def captured_rows(
    max_num_seqs: int,
    draft_tokens: int,
    capture_sizes: tuple[int, ...] | None = None,
    max_capture_size: int | None = None,
) -> tuple[int, ...]:
    """Row counts up to 64 that have a FULL decode graph, ascending (vLLM's default list unless one is given).

    A decode graph holds whole requests, so a size is rounded up to a multiple of 1 + K and dropped when that
    is more requests than ``max_num_seqs``.
    """
    query = 1 + draft_tokens
    sizes = (
        set(capture_sizes)
        if capture_sizes is not None
        else _default_sizes(max_num_seqs, query, max_capture_size)
    )
    rounded = {-(-size // query) * query for size in sizes}
    return tuple(
        sorted(size for size in rounded if size <= SPECIALIZED_ROWS and size // query <= max_num_seqs)
    )


def _default_sizes(max_num_seqs: int, query: int, max_capture_size: int | None) -> set[int]:
    largest = max_capture_size if max_capture_size is not None else min(max_num_seqs * query * 2, 1024)
    grid = {1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)}
    sizes = {size for size in grid if size <= largest}
    if max_capture_size is None and query > 1:
        counts = {1, 2, 4, *range(8, min(max_num_seqs + 1, 256), 8), max_num_seqs}
        sizes |= {count * query for count in counts if count <= max_num_seqs}
    return sizes
