"""A run folder of MLPerf's reference client, read as far as its rules are judged here. Nothing in it is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k3ctl import files
from k3ctl.errors import UsageError

CONFIG, SUMMARY, ACCURACY = (
    "config.yaml",
    "performance/result_summary.json",
    "accuracy/accuracy_results.json",
)
READY = "metrics/.ready"
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Folder:
    """``config``: as run; ``summary``, ``scores``: empty when the folder has none."""

    path: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    """Percent by data set."""
    complete: bool = False
    """The client's own sentinel is there."""

    @property
    def concurrency(self) -> int | None:
        """``target_concurrency`` of the load pattern."""
        value = at(self.config, "settings", "load_pattern", "target_concurrency")
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    @property
    def performance(self) -> Mapping[str, Any]:
        """The entry of the performance data set; empty without one."""
        return self._dataset("performance")

    @property
    def swe_bench(self) -> Mapping[str, Any]:
        """The entry of the SWE-bench data set; empty without one."""
        return self._dataset("accuracy", "swe_bench")

    def number(self, *keys: str) -> float | None:
        """A number of the result summary."""
        value = at(self.summary, *keys)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def _dataset(self, kind: str, name: str | None = None) -> Mapping[str, Any]:
        entries = self.config.get("datasets")
        for entry in entries if isinstance(entries, list) else []:
            if not isinstance(entry, Mapping) or str(entry.get("type", "")).lower() != kind:
                continue
            if name is None or str(entry.get("name", "")).split("::")[0] == name:
                return entry
        return {}


def at(data: Any, *keys: str) -> Any:
    """The value under nested keys; None where there is none."""
    for key in keys:
        if not isinstance(data, Mapping) or key not in data:
            return None
        data = data[key]
    return data


def section(data: Any, *keys: str) -> Mapping[str, Any]:
    """The mapping under nested keys; empty when there is none."""
    value = at(data, *keys)
    return value if isinstance(value, Mapping) else {}


def read(path: Path) -> Folder:
    """Read a run folder.

    Raises:
        UsageError: it is no folder, has no configuration, or one of its files is damaged.
    """
    if not (path / CONFIG).is_file():
        raise UsageError(
            f"`{path}` is no run folder of the reference client",
            hint=f"expected a directory with {CONFIG} and {SUMMARY}",
        )
    summary = _json(path / SUMMARY)
    accuracy = _json(path / ACCURACY)
    return Folder(path, _yaml(path / CONFIG), summary, _scores(accuracy), (path / READY).is_file())


def _scores(accuracy: Mapping[str, Any]) -> dict[str, float]:
    """The agentic scorers report a share of 1; here it is percent."""
    found: dict[str, float] = {}
    entries = accuracy.get("accuracy_scores")
    for entry in entries if isinstance(entries, list) else []:
        score = entry.get("score") if isinstance(entry, Mapping) else None
        if isinstance(score, int | float) and not isinstance(score, bool) and 0 <= score <= 1:
            found[str(entry.get("dataset_name"))] = 100.0 * score
    return found


def _json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    value = files.parse_json(files.text(path, MAX_BYTES), f"`{path}`")
    if not isinstance(value, Mapping):
        raise UsageError(f"`{path}` is no JSON object")
    return value


def _yaml(path: Path) -> Mapping[str, Any]:
    import yaml

    try:
        value = yaml.safe_load(files.text(path, MAX_BYTES))
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"`{path}` is not valid YAML", reasons=[str(error).replace("\n", " ")]) from None
    if not isinstance(value, Mapping):
        raise UsageError(f"`{path}` is no mapping")
    return value
