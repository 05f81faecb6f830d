"""Results that k3ctl did not produce: a GuideLLM report or an aiperf folder, under the same guards.

What the file does not say stays unknown: the deployment, the server's counters, sometimes the lengths that were asked
for. So such a result never compares as equal with anything whose conditions are known, and it says *not seen running*.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from k3ctl import files
from k3ctl.errors import UsageError
from k3ctl.loadtest import aiperf, conditions, rows, summary
from k3ctl.loadtest.judged import judge_row
from k3ctl.loadtest.rows import Row
from k3ctl.loadtest.target import Target
from k3ctl.loadtest.workload import Sessions, Workload, load

MAX_BYTES = 512 * 2**20
GUIDELLM_FORMAT = 2
EXPECTED = "a GuideLLM report (JSON) or an aiperf folder with profile_export_aiperf.json"
_REPLAY = Sessions(0, 0, 0, 0, 0, 0, 0.0, 0)


@dataclass(frozen=True)
class Foreign:
    """A result as read. ``asked``: the workload that the file describes; ``tool``: client and version."""

    path: Path
    sha256: str
    tool: str
    found: tuple[Row, ...]
    asked: Workload
    model: str
    url: str


def judged(path: Path, *, preset: str | None = None) -> dict[str, Any]:
    """The summary of a foreign result: as of a benchmark, with ``provenance``.

    ``preset``: the workload that it claims to be, instead of the one that the file describes.

    Raises:
        UsageError: the file is missing, too large, damaged, or no known result.
    """
    result = read(path)
    asked = result.asked if preset is None else replace(load(preset), concurrency=result.asked.concurrency)
    target = Target(result.url, result.model, "")
    with _one_error(result.path):
        judged_rows = [judge_row(row, asked, target) for row in result.found]
    return {
        "schema": summary.SCHEMA,
        "definitions": summary.DEFINITIONS,
        "preset": asked.preset,
        "deviations": [],
        "deployment": target.deployment.json(),
        "model": result.model,
        "conditions": conditions.of_bundle(
            {"workload": asked.as_dict(), "target": target.as_dict(), "client": result.tool},
            summary.DEFINITIONS,
        ),
        "asked": {
            "prompt_tokens": asked.prompt_tokens + (asked.prefix_tokens or 0),
            "output_tokens": asked.output_tokens,
            "concurrency": list(asked.concurrency),
            "anchors": list(asked.anchors),
        },
        "client": {"tool": result.tool, "live": False},
        "driver": asked.driver,
        "started_at": min((r.measure_start for r in result.found if r.measure_start), default=None),
        "ended_at": max((r.measure_end for r in result.found if r.measure_end), default=None),
        "partial": any(row.partial for row in result.found),
        "server_answers": True,
        "synthetic": any(row["synthetic"] for row in judged_rows),
        "valid": bool(judged_rows) and all(row["valid"] for row in judged_rows),
        "missing_steps": [c for c in asked.concurrency if c not in {row.concurrency for row in result.found}],
        "rows": judged_rows,
        "provenance": {"seen_running": False, "file": str(result.path), "sha256": result.sha256},
    }


def read(path: Path) -> Foreign:
    """Read a result file, or the folder that holds one. Raises ``UsageError``."""
    file = path / aiperf.RESULT if path.is_dir() else path
    if not file.exists():
        raise UsageError(f"`{path}` holds no result", hint=f"expected {EXPECTED}")
    try:
        content = files.read(file, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"`{file}` cannot be read: {files.reason(error)}", hint=f"expected {EXPECTED}"
        ) from None
    data = files.parse_json(content, f"`{file}`")
    if not isinstance(data, Mapping):
        raise UsageError(f"`{file}` is no JSON object", hint=f"expected {EXPECTED}")
    with _one_error(file):
        made = _guidellm(data) if "benchmarks" in data else _aiperf(data)
    tool, found, asked, model, url = made
    if not found:
        raise UsageError(f"`{file}` holds no benchmark", hint="did the client end before its first step did?")
    return Foreign(file, hashlib.sha256(content).hexdigest(), tool, tuple(found), asked, model, url)


@contextlib.contextmanager
def _one_error(file: Path) -> Iterator[None]:
    """What a file of another shape causes, as one error that names it."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"`{file}`: {error.message}", hint=error.hint or f"expected {EXPECTED}") from None
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UsageError(
            f"`{file}` is damaged or of another version: {type(error).__name__}: {error}",
            hint=f"expected {EXPECTED}",
        ) from None


_Made = tuple[str, Sequence[Row], Workload, str, str]


def _guidellm(report: Mapping[str, Any]) -> _Made:
    meta = report.get("metadata") or {}
    if meta.get("version") != GUIDELLM_FORMAT:
        raise ValueError(f"GuideLLM report format {meta.get('version')!r}, known is {GUIDELLM_FORMAT}")
    spec = (report.get("config") or {}).get("spec") or {}
    backend = spec.get("backend") or {}
    data = [entry for entry in spec.get("data") or () if isinstance(entry, Mapping)]
    replay = bool(data) and data[0].get("kind") != "synthetic_text"
    found = rows.from_guidellm(report)
    streams = (spec.get("profile") or {}).get("streams") or [row.concurrency for row in found]
    asked = _workload(
        "guidellm",
        {} if replay or not data else data[0],
        concurrency=[int(n) for n in streams],
        sessions=_REPLAY if replay else None,
    )
    tool = f"guidellm {meta.get('guidellm_version', 'unknown')}"
    return tool, found, asked, str(backend.get("model") or ""), str(backend.get("target") or "")


def _aiperf(result: Mapping[str, Any]) -> _Made:
    config = result.get("input_config") or {}
    phases = [p for p in config.get("phases") or () if isinstance(p, Mapping) and p.get("kind") != "warmup"]
    datasets = [d for d in config.get("datasets") or () if isinstance(d, Mapping)]
    concurrency = int((phases[0].get("concurrency") if phases else None) or 1)
    replay = bool(datasets) and datasets[0].get("type") == "file"
    lengths = {} if replay or not datasets else _aiperf_lengths(datasets[0])
    asked = _workload("aiperf", lengths, concurrency=[concurrency], sessions=_REPLAY if replay else None)
    model = ((config.get("models") or {}).get("items") or [{}])[0].get("name", "")
    url = ((config.get("endpoint") or {}).get("urls") or [""])[0]
    return (
        f"aiperf {result.get('aiperf_version', 'unknown')}",
        [aiperf.row(result, sessions=concurrency)],
        asked,
        str(model),
        str(url),
    )


def _aiperf_lengths(dataset: Mapping[str, Any]) -> dict[str, Any]:
    """Asked lengths of a synthetic aiperf data set, where it names them."""
    prompts = dataset.get("prompts") or {}
    found = {"prompt_tokens": prompts.get("isl"), "output_tokens": prompts.get("osl")}
    return {
        name: value.get("mean") if isinstance(value, Mapping) else value
        for name, value in found.items()
        if value
    }


def _workload(
    tool: str, lengths: Mapping[str, Any], *, concurrency: list[int], sessions: Sessions | None
) -> Workload:
    return Workload(
        preset=f"result of {tool}",
        summary="",
        source=None,
        driver=tool,
        prompt_tokens=int(lengths.get("prompt_tokens") or 0),
        output_tokens=int(lengths.get("output_tokens") or 0),
        prefix_tokens=int(lengths.get("prefix_tokens") or 0) or None,
        concurrency=tuple(concurrency),
        duration_s=None,
        requests=None,
        warmup=0.0,
        cooldown=0.0,
        seed=0,
        max_errors=None,
        sample_size=None,
        sessions=sessions,
    )
