"""The stages of an engine's start, by what vLLM 0.27 to 0.33 prints. A line that no pattern knows is no stage."""

from __future__ import annotations

import re

from k3ctl.triage.patterns import bounded

_STAGES: tuple[tuple[str, str], ...] = (
    # (stage, pattern): the first that matches names the stage
    ("import", r"\bversion \d+\.\d+"),
    ("configure", r"Resolved architecture"),
    ("engine", r"Initializing a V1 LLM engine|Waiting for .* local, .* remote core engine"),
    ("download", r"(?:Fetching|Downloading|Download).*\d+/\d+|Time spent downloading weights"),
    ("weights", r"Loading .*\d+/\d+|Starting to load model|Loading model from"),
    ("loaded", r"Model loading took|Loading weights took"),
    ("autotune", r"\[AutoTuner\].*(?:\d+/\d+|Autotuning process (?:starts|ends))"),
    ("compile", r"Dynamo bytecode transform|Compiling a graph|torch\.compile takes|Compile and warming up"),
    ("cache", r"KV cache size:|Available KV cache memory"),
    ("kernels", r"JIT kernel warmup starting|Warming up .*kernel|Compiling CuTeDSL kernels:.*\d+/\d+"),
    ("capture", r"Capturing (?:CUDA graph|cudagraph)|Graph capturing finished|Profiling CUDA graph memory"),
    ("warm", r"init engine \(profile, create kv cache, warmup model\) took"),
    ("listen", r"Starting vLLM (?:API )?server|Application startup complete"),
)
_KNOWN = tuple((name, re.compile(bounded(pattern), re.IGNORECASE)) for name, pattern in _STAGES)

MARKS = (
    "version ",
    "Resolved arch",
    "LLM engine",
    "core engine",
    "ownload",
    "oading",
    "load model",
    "AutoTuner",
    "KV cache",
    "ernel",
    "raph",
    "ompil",
    "Dynamo",
    "init engine",
    "Starting vLLM",
    "startup complete",
)
"""Texts of which one stands in every line that a stage prints."""

TITLES = {
    "import": "starting vLLM",
    "configure": "reading the model's configuration",
    "engine": "starting the engine processes",
    "download": "downloading",
    "weights": "loading weights",
    "loaded": "weights loaded",
    "autotune": "tuning kernels",
    "compile": "compiling",
    "cache": "making the cache",
    "kernels": "compiling kernels",
    "capture": "capturing CUDA graphs",
    "warm": "engine ready",
    "listen": "opening the port",
    "ready": "ready",
}
"""Stage → what it is called for people, in the order of a start."""

ORDER = tuple(TITLES)


def stage_of(text: str) -> str | None:
    """The stage that a message belongs to."""
    if not any(mark in text for mark in MARKS):
        return None
    return next((name for name, pattern in _KNOWN if pattern.search(text)), None)
