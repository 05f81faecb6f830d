"""Synthetic engine logs for tests: a start as vLLM 0.33 prints it, and lines of its processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ARGS: dict[str, Any] = {
    "model_tag": "moonshotai/Kimi-K3",
    "model": "moonshotai/Kimi-K3",
    "trust_remote_code": True,
    "tensor_parallel_size": 8,
    "gpu_memory_utilization": 0.9,
    "kv_cache_dtype": "fp8",
    "speculative_config": {"method": "dspark", "model": "draft", "num_speculative_tokens": 7},
}


def api(text: str, at: str = "08:00:01", level: str = "INFO") -> str:
    """A line of the API server."""
    return f"(APIServer pid=11) {level} 09-20 {at} [a.py:1] {text}"


def core(text: str, at: str = "08:00:40", level: str = "INFO") -> str:
    """A line of the engine core."""
    return f"(EngineCore pid=12) {level} 09-20 {at} [core.py:1] {text}"


def worker(rank: int, text: str, at: str = "08:05:00", level: str = "ERROR") -> str:
    """A line of a worker; an error unless said otherwise."""
    return f"(Worker_TP{rank} pid={400 + rank}) {level} 09-20 {at} [worker.py:1] {text}"


def start(
    changes: Mapping[str, Any] | None = None, *, served: bool = False, version: str = "0.33.0"
) -> list[str]:
    """The first lines of a start; with ``served`` up to the open port."""
    lines = [
        api(f"version {version}"),
        api(f"non-default args: { {**ARGS, **(changes or {})} }"),
        api("Resolved architecture: KimiK3ForConditionalGeneration", "08:00:19"),
        core(f"Initializing a V1 LLM engine (v{version}) with config: model='moonshotai/Kimi-K3', ..."),
        worker(0, "Loading model from scratch...", "08:01:05", "INFO"),
    ]
    if served:
        lines += [
            worker(0, "Model loading took 199.4 GiB memory and 402.1 seconds", "08:04:00", "INFO"),
            core("init engine (profile, create kv cache, warmup model) took 106.40 s", "08:04:40"),
            api("Starting vLLM server on http://0.0.0.0:30000", "08:04:44"),
            "INFO:     Application startup complete.",
        ]
    return lines


def raised(
    rank: int, exception: str, at: str = "08:05:00", frame: str = "forward", source: str = ""
) -> list[str]:
    """A traceback of a worker."""
    return [
        worker(rank, "WorkerProc hit an exception.", at),
        worker(rank, "Traceback (most recent call last):", at),
        worker(rank, f'  File "/opt/vllm/model.py", line 7, in {frame}', at),
        *([worker(rank, f"    {source}", at)] if source else []),
        *(worker(rank, line, at) for line in exception.split("\n")),
    ]


END = [
    core("EngineCore encountered a fatal error.", "08:05:02", "ERROR"),
    api("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", "08:05:03", "ERROR"),
]
FAILED_START = [
    core("EngineCore failed to start.", "08:05:02", "ERROR"),
    api(
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'E': 1}",
        "08:05:03",
    ),
]


def many(ranks: range, exception: str, **how: str) -> list[str]:
    """The same exception on several ranks."""
    return [line for rank in ranks for line in raised(rank, exception, **how)]
