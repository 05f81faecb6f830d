"""One ``Row`` per concurrency step, read from a client's own result, in k3ctl's names.

GuideLLM's ``inter_token_latency_ms`` is (last − first token) / (tokens − 1), which other tools call TPOT:
that is our ITL. GuideLLM's own ``time_per_output_token_ms`` starts at the request's start, so it contains
the TTFT: not read.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from k3ctl.loadtest import events as ev


@dataclass(frozen=True)
class Stat:
    """A distribution. Every number may be None: not measured, or no request that has it.

    The percentiles are the client's, however few the requests; ``percentiles`` decides which may be printed.
    """

    mean: float | None = None
    p25: float | None = None
    p50: float | None = None
    p75: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    count: int = 0


@dataclass(frozen=True)
class Row:
    """What the client measured in one concurrency step. Units are in the names, lengths in tokens."""

    concurrency: int
    window_s: float
    """Length of the measuring window: warm-up and cool-down are outside."""
    completed: int
    """Requests finished inside the window; every throughput counts these."""
    errored: int
    incomplete: int
    completed_whole_run: int | None
    output_tok_s: float
    total_tok_s: float | None
    request_s: float | None
    latency_s: Stat
    ttft_ms: Stat
    ttfot_ms: Stat
    """First token that is not reasoning; empty when a model only reasoned."""
    itl_ms: Stat
    prompt_tokens: Stat
    output_tokens: Stat
    tokens_per_chunk: Stat
    measure_start: float | None = None
    measure_end: float | None = None
    stopped_by_errors: bool = False
    measured_concurrency: float | None = None
    dispatch_delay_s: float | None = None
    client_warnings: tuple[str, ...] = ()
    partial: bool = False


def from_guidellm(report: Mapping[str, Any], *, sessions: int | None = None) -> list[Row]:
    """Rows of a GuideLLM report (``metadata.version`` 2); ``sessions`` in flight when it is a replay."""
    return [_guidellm_row(benchmark, sessions) for benchmark in report.get("benchmarks", [])]


def _guidellm_row(benchmark: Mapping[str, Any], sessions: int | None) -> Row:
    metrics = benchmark["metrics"]
    totals = metrics.get("request_totals") or {}
    scheduler = benchmark.get("scheduler_metrics") or {}
    state = benchmark.get("scheduler_state") or {}
    strategy = (benchmark.get("config") or {}).get("strategy") or {}
    return Row(
        concurrency=sessions or int(strategy.get("streams") or strategy.get("max_concurrency") or 1),
        window_s=float(benchmark.get("duration") or 0.0),
        completed=int(totals.get("successful") or 0),
        errored=int(totals.get("errored") or 0),
        incomplete=int(totals.get("incomplete") or 0),
        completed_whole_run=state.get("successful_requests"),
        output_tok_s=_mean(metrics, "output_tokens_per_second") or 0.0,
        total_tok_s=_mean(metrics, "tokens_per_second"),
        request_s=_mean(metrics, "requests_per_second"),
        latency_s=_stat(metrics, "request_latency"),
        ttft_ms=_stat(metrics, "time_to_first_token_ms"),
        ttfot_ms=_stat(metrics, "time_to_first_output_token_ms"),
        itl_ms=_itl(metrics, totals),
        prompt_tokens=_stat(metrics, "prompt_token_count"),
        output_tokens=_stat(metrics, "output_token_count"),
        tokens_per_chunk=_stat(metrics, "iter_tokens_per_iteration"),
        measure_start=scheduler.get("measure_start_time"),
        measure_end=scheduler.get("measure_end_time"),
        stopped_by_errors=_stopped_by_errors(state),
        measured_concurrency=_mean(metrics, "request_concurrency"),
        dispatch_delay_s=scheduler.get("request_targeted_start_delay_avg"),
        client_warnings=tuple(str(w.get("message", w)) for w in benchmark.get("warnings") or ()),
    )


def _successful(metrics: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return (metrics.get(name) or {}).get("successful") or {}


def _mean(metrics: Mapping[str, Any], name: str) -> float | None:
    value = _successful(metrics, name).get("mean")
    return None if value is None else float(value)


def _stat(metrics: Mapping[str, Any], name: str) -> Stat:
    found = _successful(metrics, name)
    percentiles = found.get("percentiles") or {}
    return Stat(
        mean=found.get("mean"),
        p25=percentiles.get("p25"),
        p50=percentiles.get("p50", found.get("median")),
        p75=percentiles.get("p75"),
        p90=percentiles.get("p90"),
        p95=percentiles.get("p95"),
        p99=percentiles.get("p99"),
        std=found.get("std_dev"),
        min=found.get("min"),
        max=found.get("max"),
        count=int(found.get("count") or 0),
    )


def _itl(metrics: Mapping[str, Any], totals: Mapping[str, Any]) -> Stat:
    """GuideLLM counts a request's mean once per gap between its tokens; as evidence it is one request."""
    stat = _stat(metrics, "inter_token_latency_ms")
    return replace(stat, count=min(stat.count, int(totals.get("successful") or 0)))


def _stopped_by_errors(state: Mapping[str, Any]) -> bool:
    """Whether an error limit ended the step; GuideLLM's exit status is 0 then."""
    ended: dict[str, Any] = {}
    for key in ("end_queuing_constraints", "end_processing_constraints"):
        ended.update(state.get(key) or {})
    return any("error" in name for name in ended)


def from_events(events: Sequence[ev.Event]) -> list[Row]:
    """Rows from the event log alone, for an interrupted run: steps that finished at least one request.

    There is no warm-up cut: the window runs from the first request's start to the last completion.
    """
    return [row for step in ev.steps(list(events)) if (row := _events_row(step)) is not None]


def _events_row(step: list[ev.Event]) -> Row | None:
    done = [
        e for e in step if e["kind"] == "request" and e.get("status") == "completed" and e.get("latency_s")
    ]
    errored = sum(1 for e in step if e["kind"] == "request" and e.get("status") == "errored")
    if not done:
        return None
    start = min(float(e.get("start_ts") or e["ts"] - e["latency_s"]) for e in done)
    end = max(float(e["ts"]) for e in done)
    window = max(end - start, 1e-9)
    out = [float(e.get("out") or 0) for e in done]
    prompt = [float(e["inp"]) for e in done if e.get("inp") is not None]
    itl = [
        1000 * e["decode_s"] / (e["out"] - 1) for e in done if e.get("decode_s") and (e.get("out") or 0) > 1
    ]
    return Row(
        concurrency=ev.streams(step),
        window_s=window,
        completed=len(done),
        errored=errored,
        incomplete=0,
        completed_whole_run=len(done),
        output_tok_s=sum(out) / window,
        total_tok_s=(sum(out) + sum(prompt)) / window,
        request_s=len(done) / window,
        latency_s=describe([float(e["latency_s"]) for e in done]),
        ttft_ms=describe([float(e["ttft_ms"]) for e in done if e.get("ttft_ms") is not None]),
        ttfot_ms=Stat(),
        itl_ms=describe(itl),
        prompt_tokens=describe(prompt),
        output_tokens=describe(out),
        tokens_per_chunk=describe([e["out"] / e["iters"] for e in done if e.get("iters") and e.get("out")]),
        measure_start=start,
        measure_end=end,
        partial=True,
    )


def describe(values: Sequence[float]) -> Stat:
    """Mean, percentiles (linear interpolation) and sample standard deviation of a list."""
    if not values:
        return Stat()
    ordered = sorted(values)
    return Stat(
        mean=statistics.fmean(ordered),
        p25=percentile(ordered, 0.25),
        p50=percentile(ordered, 0.50),
        p75=percentile(ordered, 0.75),
        p90=percentile(ordered, 0.90),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        std=statistics.stdev(ordered) if len(ordered) > 1 else 0.0,
        min=ordered[0],
        max=ordered[-1],
        count=len(ordered),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` of a sorted list lies, interpolated linearly."""
    position = share * (len(ordered) - 1)
    low, high = math.floor(position), math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
