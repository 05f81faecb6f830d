"""``raw/`` → summary: one pure function of files, so that anyone can recompute what a bundle claims.

The summary is plain JSON (``k3ctl.bench/1``). ``DEFINITIONS`` changes whenever a formula does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from k3ctl.deployment import CPU, Deployment
from k3ctl.errors import UsageError
from k3ctl.facts import published
from k3ctl.loadtest import aiperf, conditions, guards, percentiles, rows, sampler, stats, tokens
from k3ctl.loadtest import events as ev
from k3ctl.loadtest.rows import Row
from k3ctl.loadtest.scrape import Sample
from k3ctl.loadtest.target import Target
from k3ctl.loadtest.window import ServerWindow, server_window
from k3ctl.loadtest.workload import Workload

SCHEMA = "k3ctl.bench/1"
DEFINITIONS = 2
"""Version of the metric definitions in docs/reference/bench.md."""


def summarize(raw: Path) -> dict[str, Any]:
    """Recompute the summary of a raw directory.

    Raises:
        UsageError: ``ask.json`` or ``outcome.json`` is missing or damaged.
    """
    ask, outcome = _json(raw / "ask.json"), _json(raw / "outcome.json")
    workload, target = Workload.from_dict(ask["workload"]), Target.from_dict(ask["target"])
    events = ev.read(raw / "events.jsonl")
    found = client_rows(raw, ask["runs"], events)
    samples = sampler.read(raw)
    mismatch = tokens.mismatch(raw, events)
    judged = [judge_row(row, workload, target, samples, mismatch) for row in found]
    return {
        "schema": SCHEMA,
        "definitions": DEFINITIONS,
        "preset": workload.preset,
        "deviations": list(workload.deviations),
        "deployment": target.deployment.json(),
        "model": target.model,
        "conditions": conditions.of_bundle(ask, DEFINITIONS),
        "asked": {
            "prompt_tokens": workload.prompt_tokens + (workload.prefix_tokens or 0),
            "output_tokens": workload.output_tokens,
            "concurrency": list(workload.concurrency),
            "anchors": list(workload.anchors),
        },
        "client": {"tool": ask["client"], "live": _live(events)},
        "driver": workload.driver,
        "started_at": outcome["started_at"],
        "ended_at": outcome["ended_at"],
        "partial": any(row.partial for row in found) or bool(outcome["interrupted"]),
        "server_answers": bool(outcome["server_answers"]),
        "synthetic": any(row["synthetic"] for row in judged),
        "valid": bool(judged)
        and all(row["valid"] for row in judged)
        and len(judged) == len(workload.concurrency)
        and bool(outcome["server_answers"]),
        "stalled": list(outcome.get("stalled") or ()),
        "missing_steps": [c for c in workload.concurrency if c not in [row["concurrency"] for row in judged]],
        "rows": judged,
    }


def client_rows(raw: Path, runs: Sequence[Mapping[str, Any]], events: Sequence[ev.Event]) -> list[Row]:
    """Rows from the clients' reports; a run without a report gives what its event log holds, marked partial."""
    found: list[Row] = []
    for index, run in enumerate(runs):
        found += _report_rows(raw, run) or rows.from_events(_logged(raw, run, events, index))
    return found


def _report_rows(raw: Path, run: Mapping[str, Any]) -> list[Row]:
    if run["tool"] == "aiperf":
        report = raw / run["report"] / aiperf.RESULT
        return [aiperf.row(_json(report), sessions=run["sessions"])] if report.is_file() else []
    report = raw / run["report"]
    return rows.from_guidellm(_json(report), sessions=run["sessions"]) if report.is_file() else []


def _logged(raw: Path, run: Mapping[str, Any], events: Sequence[ev.Event], index: int) -> list[ev.Event]:
    """Events of the run's own process: those after its ``client_start``."""
    if run["tool"] == "aiperf":
        return list(aiperf.Tail(raw / run["report"], run["sessions"])())
    starts = [n for n, event in enumerate(events) if event["kind"] == "client_start"] or [0]
    if index >= len(starts):
        return []
    end = starts[index + 1] if index + 1 < len(starts) else len(events)
    return list(events[starts[index] : end])


def judge_row(
    row: Row, workload: Workload, target: Target, samples: Sequence[Sample], mismatch: str | None = None
) -> dict[str, Any]:
    """One row of the summary: the client's figures, the server's, the derived ones and every guard's word."""
    window = server_window(samples, row.measure_start, row.measure_end)
    evidence = guards.GuardEvidence(row, workload, target.deployment, window, golden_al(target), mismatch)
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
        "synthetic": guards.synthetic(evidence) is not None,
        "valid": guards.valid(findings),
        "findings": [asdict(finding) for finding in findings],
        "client_warnings": list(row.client_warnings),
    }


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


def _live(events: Sequence[ev.Event]) -> bool:
    return bool(events) and not any(event["kind"] == "seam_missing" for event in events)


def _per(value: float | None, deployment: Deployment) -> float | None:
    """Share of one GPU; None on a CPU or when the number of GPUs is not known."""
    if value is None or not deployment.gpus or deployment.gpu == CPU:
        return None
    return value / deployment.gpus


def _json(path: Path) -> Any:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"`{path}` cannot be read: {error}", hint="is this a k3ctl result directory?"
        ) from error
    if not isinstance(value, Mapping):
        raise UsageError(f"`{path}` is not a JSON object")
    return value
