"""aiperf ≥ 0.13, run as a program from an environment of its own: command line, live records, results.

aiperf replays WEKA traces exactly (subagents, joins, pauses). It pins another ``textual`` than k3ctl and is
therefore never a dependency.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from k3ctl.errors import MachineError, UsageError
from k3ctl.loadtest.events import Event
from k3ctl.loadtest.rows import Row, Stat
from k3ctl.loadtest.target import Target
from k3ctl.loadtest.workload import Workload

RESULT = "profile_export_aiperf.json"
RECORDS = "profile_export.jsonl"
MINIMUM = (0, 13)


def argv(load: Workload, to: Target, *, traces: str, output: str, concurrency: int) -> list[str]:
    """Arguments after ``aiperf`` for a replay of the WEKA traces in ``traces``."""
    parts = ["profile", "--url", to.url, "--endpoint-type", "chat", "--streaming", "--model", to.model]
    parts += ["--tokenizer", to.tokenizer, "--concurrency", str(concurrency)]
    if to.trust_remote_code:
        parts += ["--tokenizer-trust-remote-code"]
    if load.duration_s is not None:
        parts += ["--benchmark-duration", f"{load.duration_s:g}"]
    parts += ["--random-seed", str(load.seed), "--use-server-token-count", "--no-gpu-telemetry"]
    # every answer as long as it was asked for, sampled as the preset says
    parts += ["--extra-inputs", json.dumps({"ignore_eos": True, **load.body}, separators=(",", ":"))]
    parts += ["--custom-dataset-type", "weka_trace", "--input-file", traces, "--allow-dataset-wrap"]
    return [*parts, "--ui", "None", "--output-artifact-dir", output]


def version(executable: str) -> str:
    """Version that ``aiperf --version`` prints.

    Raises:
        MachineError: it does not run, or is older than 0.13.
    """
    try:
        done = subprocess.run(
            [executable, "--version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise MachineError(f"`{executable} --version` failed: {error}", hint="check K3CTL_AIPERF") from error
    words = [word for word in done.stdout.replace(",", " ").split() if word[:1].isdigit()]
    found = words[-1] if words else ""
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if numbers < MINIMUM:
        raise MachineError(
            f"`{executable}` is version {found or 'unknown'}", hint="k3ctl needs aiperf 0.13 or newer"
        )
    return found


class Tail:
    """Follows ``profile_export.jsonl`` and gives k3ctl's ``bench_start``, ``request``, ``tick`` events."""

    def __init__(self, directory: Path, sessions: int) -> None:
        from k3ctl.loadtest.events import Tail as Lines

        self._lines = Lines(directory / RECORDS, key="metadata")
        self._sessions = sessions
        self._done: list[Event] = []
        self._started = False

    def __call__(self) -> Iterator[Event]:
        """The events that are new since the last call."""
        if not self._started:
            self._started = True
            yield {"ts": 0.0, "kind": "client", "name": "aiperf"}
            yield {"ts": 0.0, "kind": "bench_start", "detail": {"streams": self._sessions}}
        fresh = [event for record in self._lines() if (event := request_event(record)) is not None]
        if fresh:
            self._done += fresh
            yield from fresh
            yield tick(self._done)


def request_event(record: Mapping[str, Any]) -> Event | None:
    """A record of ``profile_export.jsonl`` as a ``request`` event; None for warm-up."""
    meta, metrics = record["metadata"], record.get("metrics") or {}
    if meta.get("benchmark_phase") == "warmup":
        return None
    event: dict[str, Any] = {
        "ts": meta["request_end_ns"] / 1e9,
        "kind": "request",
        "id": meta.get("x_request_id"),
        "conv": meta.get("conversation_id"),
        "turn": meta.get("turn_index"),
        "agent": f"depth{meta.get('agent_depth', 0)}",
        "status": "errored" if record.get("error") else "completed",
        "error": (record.get("error") or {}).get("message")
        if isinstance(record.get("error"), Mapping)
        else None,
        "start_ts": meta["request_start_ns"] / 1e9,
    }
    fields = {
        "ttft_ms": ("time_to_first_token", 1.0),
        "inp": ("usage_prompt_tokens", 1.0),
        "out": ("usage_completion_tokens", 1.0),
        "cached": ("usage_prompt_cache_read_tokens", 1.0),
        "latency_s": ("request_latency", 1e-3),
        "decode_s": ("decode_duration", 1e-3),
    }
    for name, (source, factor) in fields.items():
        if (value := (metrics.get(source) or {}).get("value")) is not None:
            event[name] = value * factor
    if told := _speculation(metrics):
        event["server"] = {"speculative_decoding": told}
    return event


def _speculation(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What the server told of a request's drafts, by vLLM's own names; empty when it told nothing."""
    names = {
        "num_spec_steps": "spec_decode_steps",
        "num_accepted_draft_tokens": "spec_decode_accepted_draft_tokens",
        "num_draft_tokens": "spec_decode_draft_tokens",
    }
    return {
        name: metrics[tag].get("value")
        for name, tag in names.items()
        if isinstance(metrics.get(tag), Mapping)
    }


def tick(done: Sequence[Event]) -> Event:
    """Running means over the requests so far, as GuideLLM's ticks give them."""
    good = [event for event in done if event["status"] == "completed"]
    window = max(e["ts"] for e in done) - min(e["start_ts"] for e in done)
    decode = [(e["decode_s"], e["out"] - 1) for e in good if e.get("decode_s") and e.get("out", 0) > 1]
    first = [e["ttft_ms"] for e in good if "ttft_ms" in e]
    return {
        "ts": done[-1]["ts"],
        "kind": "tick",
        "phase": "active",
        "ok": len(good),
        "err": len(done) - len(good),
        "otps": sum(e.get("out", 0) for e in good) / window if window > 0 else None,
        "ttft_ms": sum(first) / len(first) if first else None,
        "itl_ms": 1000 * sum(t / n for t, n in decode) / len(decode) if decode else None,
    }


def row(result: Mapping[str, Any], *, sessions: int) -> Row:
    """The row of a finished replay (``profile_export_aiperf.json``); warm-up is already left out.

    Raises:
        UsageError: the file holds no request count.
    """
    if "request_count" not in result:
        raise UsageError("not an aiperf result: `request_count` is missing")
    completed = int(result["request_count"].get("avg") or 0)
    errors = _errors(result)
    late = _avg(result, "credit_to_start_latency")
    return Row(
        concurrency=sessions,
        window_s=float(_avg(result, "benchmark_duration") or 0.0),
        completed=completed,
        errored=errors,
        incomplete=0,
        completed_whole_run=None,
        output_tok_s=float(_avg(result, "output_token_throughput") or 0.0),
        total_tok_s=_avg(result, "total_token_throughput"),
        request_s=_avg(result, "request_throughput"),
        latency_s=_stat(result, "request_latency", 1e-3),
        ttft_ms=_stat(result, "time_to_first_token"),
        ttfot_ms=_stat(result, "time_to_first_output_token"),
        itl_ms=_stat(result, "inter_token_latency"),
        prompt_tokens=_stat(result, "usage_prompt_tokens", fallback="input_sequence_length"),
        output_tokens=_stat(result, "output_sequence_length"),
        tokens_per_chunk=Stat(),
        measured_concurrency=_avg(result, "effective_concurrency"),
        dispatch_delay_s=None if late is None else late / 1e3,
        client_warnings=_validity(result),
        partial=bool(result.get("was_cancelled")),
    )


def window(events: Sequence[Event]) -> tuple[float, float] | None:
    """When the replay was measured, in unix seconds: first request's start to last request's end, without warm-up."""
    done = [event for event in events if event["kind"] == "request"]
    if not done:
        return None
    return min(event["start_ts"] for event in done), max(event["ts"] for event in done)


def _errors(result: Mapping[str, Any]) -> int:
    return sum(int(entry.get("count", 1)) for entry in result.get("error_summary") or [])


def _validity(result: Mapping[str, Any]) -> tuple[str, ...]:
    """What aiperf's scenario says about itself: only a valid submission may be called AgentX."""
    meta = result.get("metadata") or {}
    if meta.get("submission_valid", True):
        return ()
    return (
        f"not a valid AgentX submission: {', '.join(meta.get('submission_invalid_reasons') or ['unknown'])}",
    )


def _avg(result: Mapping[str, Any], name: str) -> float | None:
    value = (result.get(name) or {}).get("avg")
    return None if value is None else float(value)


def _stat(result: Mapping[str, Any], name: str, factor: float = 1.0, *, fallback: str | None = None) -> Stat:
    found = result.get(name) or (result.get(fallback) if fallback else None) or {}

    def scaled(key: str) -> float | None:
        value = found.get(key)
        return None if value is None else value * factor

    return Stat(
        mean=scaled("avg"),
        p25=scaled("p25"),
        p50=scaled("p50"),
        p75=scaled("p75"),
        p90=scaled("p90"),
        p95=scaled("p95"),
        p99=scaled("p99"),
        std=scaled("std"),
        min=scaled("min"),
        max=scaled("max"),
        count=int(found.get("count") or (result.get("request_count") or {}).get("avg") or 0),
    )
