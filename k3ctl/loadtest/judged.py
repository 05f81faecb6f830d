"""One row of a summary as JSON: the client's figures, what was watched meanwhile, and every guard's word. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from k3ctl.deployment import CPU, Deployment
from k3ctl.facts import published
from k3ctl.loadtest import acceptance, clientcpu, energy, guards, percentiles, stats
from k3ctl.loadtest.acceptance import Accepted
from k3ctl.loadtest.clientcpu import CpuSample
from k3ctl.loadtest.events import Event
from k3ctl.loadtest.power import NO_POWER, PowerLog
from k3ctl.loadtest.rows import Row
from k3ctl.loadtest.scrape import Sample
from k3ctl.loadtest.target import Target
from k3ctl.loadtest.window import ServerWindow, server_window
from k3ctl.loadtest.workload import Workload


@dataclass(frozen=True)
class Watched:
    """What was seen of a run besides the client's own report; nothing of it for a foreign result.

    ``token_mismatch``: how the client's tokenizer differs from the server's, when it does. ``ranks``: as in
    ``ranks.of_table``.
    """

    samples: Sequence[Sample] = ()
    token_mismatch: str | None = None
    power: PowerLog = NO_POWER
    client: Sequence[CpuSample] = ()
    ranks: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Rung:
    """What belongs to one concurrency alone: its requests, what the server said to emptying its prefix cache before."""

    requests: Sequence[Event] = ()
    prefix_reset: str | None = None
    first: bool = True


NOTHING = Watched()
ALONE = Rung()


def judge_row(
    row: Row, workload: Workload, target: Target, watched: Watched = NOTHING, rung: Rung = ALONE
) -> dict[str, Any]:
    """One row of the summary: the client's figures, the server's, the derived ones and every guard's word."""
    window = server_window(watched.samples, row.measure_start, row.measure_end)
    used = energy.in_window(watched.power, row.measure_start, row.measure_end, target.deployment.gpus)
    accepted = acceptance.of(rung.requests, row.measure_start, row.measure_end)
    client = clientcpu.in_window(watched.client, row.measure_start, row.measure_end)
    evidence = guards.GuardEvidence(
        row,
        workload,
        target.deployment,
        window,
        golden_al(target),
        watched.token_mismatch,
        used,
        acceptance.summed(accepted),
        client,
        rung.prefix_reset,
        rung.first,
        tuple((watched.ranks or {}).get("differ") or ()),
    )
    findings = guards.judge(evidence)
    resolution = stats.resolution_share(row)
    return {
        "concurrency": row.concurrency,
        "window_s": row.window_s,
        "requests": {
            "completed": row.completed,
            "errored": row.errored,
            "incomplete": row.incomplete,
            "completed_whole_run": row.completed_whole_run,
        },
        "output_tok_s": row.output_tok_s,
        "total_tok_s": row.total_tok_s,
        "request_s": row.request_s,
        "output_tok_s_per_gpu": _per(row.output_tok_s, target.deployment),
        "total_tok_s_per_gpu": _per(row.total_tok_s, target.deployment),
        "decode_tok_s": None if not row.itl_ms.mean else row.concurrency * 1000.0 / row.itl_ms.mean,
        "user_tok_s": stats.per_second(row.itl_ms.mean),
        "interactivity_p90_tok_s": stats.per_second(percentiles.point(row.itl_ms, "p90")),
        "latency_s": percentiles.told(row.latency_s),
        "ttft_ms": percentiles.told(row.ttft_ms),
        "ttfot_ms": percentiles.told(row.ttfot_ms),
        "itl_ms": percentiles.told(row.itl_ms),
        "prompt_tokens": percentiles.told(row.prompt_tokens),
        "output_tokens": percentiles.told(row.output_tokens),
        "tokens_per_chunk": percentiles.told(row.tokens_per_chunk),
        "little_ratio": None if workload.sessions else stats.little_ratio(row),  # agents pause
        "step_share": stats.step_share(row.completed),
        "interval_share": stats.interval_share(row.latency_s),
        "resolution_share": resolution,
        "server": _server(window),
        "energy": energy.figures(used, row),
        "acceptance": _acceptance(accepted),
        "client": None if client is None else asdict(client),
        "prefix_cache_reset": rung.prefix_reset,
        "synthetic": guards.synthetic(evidence) is not None,
        "valid": guards.valid(findings),
        "findings": [asdict(finding) for finding in findings],
        "client_warnings": list(row.client_warnings),
    }


def _acceptance(found: Sequence[Accepted]) -> dict[str, Any] | None:
    """Per request, as far as the server tells it: over all requests, and by prompt length."""
    whole = acceptance.summed(found)
    if whole is None:
        return None
    buckets = [
        {"from_tokens": first, "to_tokens": last, **asdict(inside)}
        for first, last, inside in acceptance.by_context(found)
    ]
    return {**asdict(whole), "by_context": buckets}


def golden_al(target: Target) -> float | None:
    """Reference acceptance length for the deployment's K; None for other models and without drafts."""
    k = target.deployment.num_speculative_tokens
    return published.acceptance().length(k) if k and "kimi-k3" in target.model.lower() else None


def _server(window: ServerWindow | None) -> dict[str, Any] | None:
    if window is None:
        return None
    path = window.path
    return {
        "seconds": window.seconds,
        "output_tok_s": window.output_tok_s,
        "acceptance_length": window.acceptance_length,
        "acceptance_per_position": list(window.acceptance_per_position),
        "draft_length": window.draft_length,
        "prefix_hit_share": window.prefix_hit_share,
        "preemptions": window.preemptions,
        "tpot_ms": window.tpot_ms,
        "path": None
        if path is None
        else {
            "specialized": path.specialized,
            "decode_and_mixed": path.decode_and_mixed,
            "share": path.share,
            "decode_share": path.decode_share,
            "reasons": dict(path.reasons),
        },
    }


def _per(value: float | None, deployment: Deployment) -> float | None:
    """Share of one GPU; None on a CPU or when the number of GPUs is not known."""
    if value is None or not deployment.gpus or deployment.gpu == CPU:
        return None
    return value / deployment.gpus
