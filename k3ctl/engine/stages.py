"""What the engine is doing while it starts, read from its log.

Patterns follow the messages of vLLM 0.27 to 0.33; a line that none of them knows changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(r"^(?:\([^)]*pid=\d+\)\s*)?(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\]\s*)?")
_COUNT = re.compile(r"\b(\d+)/(\d+)\b")
_LEFT = re.compile(r"<\s*(?:(\d+):)?(\d+):(\d\d)")

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
_KNOWN = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _STAGES)

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


@dataclass(frozen=True)
class Stage:
    """Where a start stands. ``done`` of ``total`` steps, ``eta_s`` seconds to the end of this stage."""

    name: str
    done: int | None = None
    total: int | None = None
    eta_s: float | None = None
    detail: str = ""

    def __str__(self) -> str:
        text = TITLES[self.name]
        if self.total:
            text += f" {self.done}/{self.total}"
        if self.eta_s is not None and self.done != self.total:
            text += f", about {duration(self.eta_s)} left"
        return text


class StageTracker:
    """Feeds on log lines, gives a ``Stage`` whenever the start moved on."""

    def __init__(self) -> None:
        self.stage: Stage | None = None
        self._first: tuple[str, int, float] | None = None

    def feed(self, line: str, now: float) -> Stage | None:
        """The new stage if ``line`` (seen at ``now`` seconds) changed it, else None."""
        text = _PREFIX.sub("", ANSI.sub("", line).strip(), count=1)
        name = next((name for name, pattern in _KNOWN if pattern.search(text)), None)
        if name is None or self._behind(name):
            return None
        stage, last = self._count(name, text, now), self.stage
        if last is not None and (stage.name, stage.done, stage.total) == (last.name, last.done, last.total):
            return None
        self.stage = stage
        return stage

    def _behind(self, name: str) -> bool:
        """Ranks report late: an earlier stage than the present one is not a step back."""
        order = list(TITLES)
        return self.stage is not None and order.index(name) < order.index(self.stage.name)

    def _count(self, name: str, text: str, now: float) -> Stage:
        found = None if name in ("import", "configure") else _COUNT.search(text)
        if found is None:
            return Stage(name, detail=text[:160])
        done, total = int(found[1]), int(found[2])
        if self.stage is not None and self.stage.name == name and self.stage.total == total:
            done = max(done, self.stage.done or 0)
        if self._first is None or self._first[0] != f"{name}/{total}":
            self._first = (f"{name}/{total}", done, now)
        return Stage(name, done, total, self._eta(done, total, text, now), text[:160])

    def _eta(self, done: int, total: int, text: str, now: float) -> float | None:
        """From the pace seen here; before there is one, what the progress bar itself says."""
        assert self._first is not None
        _, first, since = self._first
        if done > first and now > since:
            return (total - done) * (now - since) / (done - first)
        if left := _LEFT.search(text):
            hours, minutes, seconds = (int(part or 0) for part in left.groups())
            return float(hours * 3600 + minutes * 60 + seconds)
        return None


def duration(seconds: float) -> str:
    """``7 s``, ``4 min``, ``1 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
