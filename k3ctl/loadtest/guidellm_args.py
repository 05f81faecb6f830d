"""GuideLLM's command line for a workload; for all of ``8k1k`` byte-equal to the published command.

A benchmark runs it once per concurrency (``clients``), so there each command names one of the published streams.
"""

from __future__ import annotations

import json
from typing import Any

from k3ctl.loadtest.target import Target
from k3ctl.loadtest.workload import Workload


def argv(workload: Workload, target: Target, *, output: str, trace: str | None = None) -> list[str]:
    """Arguments after ``guidellm`` (first ``run``).

    ``output`` is the path of the JSON report. With ``trace``, a file of OpenTelemetry sessions, the recorded
    messages and pauses are replayed instead of synthetic prompts at a fixed concurrency.
    """
    parts = [
        "run",
        "--backend",
        _compact(_backend(workload, target)),
        "--tokenizer",
        _compact(_tokenizer(target)),
    ]
    parts += ["--data", _otel(trace), "--profile", _pairs("replay")] if trace else _fixed(workload)
    for constraint in _constraints(workload):
        parts += ["--constraint", constraint]
    parts += ["--seed", _pairs("static", value=workload.seed)]
    if workload.sample_size is not None:
        parts += ["--metrics", _pairs("generative", sample_size=workload.sample_size)]
    return [*parts, "--output", _pairs("json", path=output)]


def _backend(workload: Workload, target: Target) -> dict[str, Any]:
    backend: dict[str, Any] = {
        "kind": "openai_http",
        "target": target.url,
        "model": target.model,
        "request_format": workload.request_format,
    }
    if workload.timeout_s is not None:
        backend["timeout"] = workload.timeout_s
    if workload.body:
        backend["extras"] = {"body": dict(workload.body)}
    return backend


def _tokenizer(target: Target) -> dict[str, Any]:
    tokenizer: dict[str, Any] = {"kind": "huggingface_auto", "model": target.tokenizer}
    if target.trust_remote_code:
        tokenizer["load_kwargs"] = {"trust_remote_code": True}
    return tokenizer


def _fixed(workload: Workload) -> list[str]:
    data = _pairs(
        "synthetic_text",
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        prefix_tokens=workload.prefix_tokens,
        prefix_count=workload.prefix_count,
    )
    profile = _pairs("concurrent", warmup=workload.warmup or None, cooldown=workload.cooldown or None)
    streams = ",".join(map(str, workload.concurrency))
    return ["--data", data, "--profile", profile, "--override", "profile.streams", streams]


def _otel(trace: str) -> str:
    return _compact({"kind": "otel", "source": {"kind": "json_file", "path": trace}, "history": "trace"})


def _constraints(workload: Workload) -> list[str]:
    constraints = []
    if workload.duration_s is not None:
        constraints.append(_pairs("max_duration", seconds=workload.duration_s))
    if workload.requests is not None:
        constraints.append(_pairs("max_requests", count=workload.requests))
    if workload.max_errors is not None:
        constraints.append(_pairs("max_errors", count=workload.max_errors))
    return constraints


def _pairs(kind: str, **values: Any) -> str:
    """GuideLLM's ``kind=…,key=value`` notation, without the keys whose value is None."""
    return ",".join(
        [f"kind={kind}", *(f"{key}={value}" for key, value in values.items() if value is not None)]
    )


def _compact(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
