"""MLPerf Endpoints' Kimi K3 agentic benchmark, as its own documents state it (``mlperf.yaml``). None of it is ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Benchmark:
    """The benchmark's fixed values; lengths in tokens, times in seconds, gates in percent."""

    sources: Mapping[str, Mapping[str, str]]
    dataset: Mapping[str, Any]
    sampling: Mapping[str, float]
    checkpoints: Mapping[str, str]
    """Approved repositories and their revisions."""
    drafters: Mapping[str, str]
    drafters_from: str
    curve: Mapping[str, Any]
    seconds: Mapping[str, int]
    gates: Mapping[str, Any]

    def cited(self, source: str) -> str:
        """Address and date of a source."""
        entry = self.sources[source]
        return f"{entry['url']} ({entry['date']})"


@cache
def kimi_k3() -> Benchmark:
    """The Kimi K3 benchmark."""
    import yaml

    text = (resources.files("k3ctl.facts") / "mlperf.yaml").read_text(encoding="utf-8")
    return Benchmark(**yaml.safe_load(text))
