"""GuideLLM in its own process, with live events: ``python guidellm_bridge.py EVENTS.jsonl run --backend …``.

The arguments after the event file are GuideLLM's own command line, run unchanged by GuideLLM's own CLI. The
bridge only replaces two names of GuideLLM 0.8.1 before the CLI starts: the console progress (its callbacks
become ``run_start``, ``bench_start``, ``tick``, ``bench_compile``, ``bench_done``, ``run_end`` lines) and
the accumulator (each request's life becomes ``request`` lines). When that seam is missing it writes one
``seam_missing`` line and runs the CLI as it is: final results only.

This file is executed by path and never imported by k3ctl: it runs where GuideLLM is installed. GuideLLM's
worker processes import it again as ``__mp_main__``, so nothing heavy may stand at module level.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

KNOWN_VERSION = "0.8.1"
PARENT = "K3CTL_BENCH_PARENT"
API_KEY = "K3CTL_BENCH_API_KEY"
PROBE = "tokenize.json"
REFERENCES = "references.json"
TICK_S = 0.25
REQUEST_STATES = frozenset({"first_token", "completed", "errored", "cancelled"})


class Emitter:
    """Appends one JSON line per event; ``ts`` is unix seconds."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("a", buffering=1, encoding="utf-8")  # noqa: SIM115

    def __call__(self, kind: str, **fields: Any) -> None:
        """Write one event."""
        self._file.write(json.dumps({"ts": time.time(), "kind": kind, **fields}, default=str) + "\n")


def request_event(response: Any, info: Any) -> dict[str, Any]:
    """What one request says about itself: ids, state, times, token counts; never its text."""
    timings = info.timings
    event: dict[str, Any] = {
        "id": info.request_id,
        "status": info.status,
        "conv": info.conversation_id,
        "turn": info.turn_index,
        "agent": info.agent_id,
        "error": info.error,
    }
    if timings.first_token_iteration and timings.request_start:
        event["ttft_ms"] = 1000 * (timings.first_token_iteration - timings.request_start)
    if info.status == "completed" and response is not None:
        event.update(
            out=response.output_metrics.total_tokens,
            inp=response.input_metrics.total_tokens,
            cached=response.input_metrics.cached_tokens,
            latency_s=timings.request_end - timings.request_start,
            start_ts=timings.request_start,
            iters=timings.token_iterations,
            server=response.response_metrics,
        )
        if timings.last_token_iteration and timings.first_token_iteration:
            event["decode_s"] = timings.last_token_iteration - timings.first_token_iteration
    return event


def tick_event(accumulator: Any, state: Any) -> dict[str, Any]:
    """Progress of one step: phase, remaining share, request counts, running means."""
    done = accumulator.completed_metrics
    return {
        "phase": accumulator.timings.status,
        "remaining": state.progress.remaining_fraction,
        "queued": state.queued_requests,
        "processing": state.processing_requests,
        "ok": state.successful_requests,
        "err": state.errored_requests,
        "cancelled": state.cancelled_requests,
        "conc": accumulator.concurrency_metric.time_weighted_mean,
        "rps": done.requests.rate_per_second,
        "otps": done.output_tokens.rate_per_second,
        "ttps": done.total_tokens.rate_per_second,
        "ttft_ms": done.time_to_first_token_ms.mean,
        "itl_ms": done.inter_token_latency_ms.mean,
        "lat_s": done.request_latency.mean,
    }


def install(emit: Emitter) -> None:
    """Replace the progress class and the accumulator of GuideLLM 0.8.1 by ones that also emit events."""
    import guidellm.benchmark.entrypoints as entry
    from guidellm.benchmark import BenchmarkerProgress, GenerativeBenchmarkAccumulator

    class Progress(BenchmarkerProgress):  # type: ignore[misc]
        """Progress callbacks as events."""

        last_tick = 0.0

        async def on_initialize(self, profile: Any) -> None:
            emit("run_start", strategies=list(profile.strategy_types))

        async def on_benchmark_start(self, strategy: Any) -> None:
            detail = strategy.model_dump(mode="json")
            found = references().get(str(detail.get("streams")))
            emit(
                "bench_start",
                strategy=str(strategy),
                detail=detail,
                **({"reference": found} if found else {}),
            )

        async def on_benchmark_update(self, accumulator: Any, state: Any) -> None:
            if time.monotonic() - self.last_tick >= TICK_S:
                self.last_tick = time.monotonic()
                emit("tick", **tick_event(accumulator, state))

        async def on_benchmark_compile(self) -> None:
            emit("bench_compile")

        async def on_benchmark_complete(self, benchmark: Any) -> None:
            metrics = benchmark.metrics
            emit(
                "bench_done",
                totals=metrics.request_totals.model_dump(),
                ttft_p90=metrics.time_to_first_token_ms.successful.percentiles.p90,
                otps=metrics.output_tokens_per_second.successful.mean,
                measure_start=benchmark.scheduler_metrics.measure_start_time,
                measure_end=benchmark.scheduler_metrics.measure_end_time,
            )

        async def on_finalize(self) -> None:
            emit("run_end")

    class Accumulator(GenerativeBenchmarkAccumulator):  # type: ignore[misc]
        """Tees every request's state change."""

        def update_estimate(self, response: Any, request: Any, info: Any, state: Any) -> None:
            super().update_estimate(response, request, info, state)
            if info.status in REQUEST_STATES:
                emit("request", **request_event(response, info))

    for name in ("GenerativeConsoleBenchmarkerProgress", "GenerativeBenchmarkAccumulator"):
        getattr(entry, name)  # an AttributeError here means that the seam moved
    entry.GenerativeConsoleBenchmarkerProgress = Progress
    entry.GenerativeBenchmarkAccumulator = Accumulator


def references() -> dict[str, Any]:
    """Published figures per concurrency that k3ctl found comparable, for whoever shows the events."""
    path = Path(REFERENCES)
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def probe_texts() -> list[str]:
    """The texts that k3ctl has already let the server count (``tokenize.json`` beside the events)."""
    probe = Path(PROBE)
    return list(json.loads(probe.read_text(encoding="utf-8"))["counts"]) if probe.is_file() else []


def probe_tokenizer(arguments: list[str], texts: list[str]) -> dict[str, int]:
    """How many tokens the client's tokenizer makes of each text, loaded as GuideLLM will load it."""
    from transformers import AutoTokenizer

    options = json.loads(arguments[arguments.index("--tokenizer") + 1])
    tokenizer = AutoTokenizer.from_pretrained(options["model"], **options.get("load_kwargs", {}))
    return {text: len(tokenizer.encode(text, add_special_tokens=False)) for text in texts}


def prepare_workers() -> None:
    """With a fork server, import the client once for all workers, beside this process's own import."""
    if os.environ.get("GUIDELLM__MP_CONTEXT_TYPE") == "forkserver":
        from multiprocessing import forkserver

        multiprocessing.set_forkserver_preload(["guidellm.scheduler.worker", "guidellm.backends"])
        forkserver.ensure_running()


def main(arguments: list[str]) -> None:
    """Emit ``seam`` or ``seam_missing``, then run GuideLLM's CLI with the arguments after the event file."""
    threading.Thread(
        target=die_with, args=(int(os.environ.get(PARENT) or os.getppid()),), daemon=True
    ).start()
    emit = Emitter(arguments[0])
    version = importlib.metadata.version("guidellm")
    emit("client", name="guidellm", version=version)
    prepare_workers()
    if version == KNOWN_VERSION:
        try:
            install(emit)
        except (AttributeError, ImportError) as error:
            emit("seam_missing", reason=repr(error))
    else:
        emit("seam_missing", reason=f"guidellm {version}, known {KNOWN_VERSION}")
    if texts := probe_texts():
        try:
            emit("tokenizer", counts=probe_tokenizer(arguments[1:], texts))
        except Exception as error:
            # GuideLLM loads the same tokenizer next and says what is wrong in its own words
            emit("tokenizer", error=f"{type(error).__name__}: {error}")
    from guidellm.cli import cli

    try:
        cli(
            args=with_api_key(arguments[1:], os.environ.get(API_KEY)),
            prog_name="guidellm",
            standalone_mode=True,
        )
    except SystemExit as end:
        emit("exit", status=end.code if isinstance(end.code, int) else int(end.code is not None))
        leave(end.code if isinstance(end.code, int) else 1)
    except BaseException as error:
        emit("fatal", error=f"{type(error).__name__}: {error}")
        raise


def with_api_key(arguments: list[str], key: str | None) -> list[str]:
    """Put the key into the backend's options here, so that it never stands on a command line."""
    if not key:
        return arguments
    at = arguments.index("--backend") + 1
    backend = {**json.loads(arguments[at]), "api_key": key}
    return [*arguments[:at], json.dumps(backend), *arguments[at + 1 :]]


def leave(status: int) -> None:
    """End at once: taking torch and the fork server down in order costs seconds and changes no result."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def die_with(parent: int) -> None:
    """Stop the whole process group when k3ctl (``parent``) is gone: no load without a watcher.

    Python's resource trackers are spared: they unlink the group's semaphores when they are alone, and end.
    """
    while os.getppid() == parent:
        time.sleep(1.0)
    while rest := group_members() - {os.getpid()}:
        for pid in rest:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    os._exit(1)


def group_members() -> set[int]:
    """Living processes of this process group, less resource trackers and those that wait for their parent."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, group = entry.read_text().rpartition(")")[2].split()[:3]
            tracker = b"multiprocessing.resource_tracker" in entry.with_name("cmdline").read_bytes()
            if int(group) == os.getpgrp() and state not in "ZX" and not tracker:
                found.add(int(entry.parent.name))
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
