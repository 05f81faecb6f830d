"""A validation as Markdown, and the tables that both reports have. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from k3ctl.deployment import CPU
from k3ctl.validate import coverage, matrix
from k3ctl.validate.record import Result

Summary = Mapping[str, Any]
COLUMNS = ("check", "outcome", "path", "finding")
NOT_ASKED = "hole"


@dataclass(frozen=True)
class Grid:
    """The matrix of one draft length and layout: contexts down, batches across; a cell is an outcome or ``hole``."""

    title: str
    batches: Sequence[int]
    rows: Sequence[tuple[int, Sequence[str]]]


def title(summary: Summary, name: str) -> str:
    """One line for people."""
    models = sorted({str(facts.get("model")) for facts in summary["servers"].values()})
    return f"Validation of {', '.join(models)}: {summary['statement']} ({name})"


def verdict(summary: Summary) -> str:
    """What the whole comes to, in one sentence."""
    if not summary["good"]:
        counts = summary["counts"]
        bad = [f"{counts[name]} {name}" for name in ("failed", "void", "unknown") if counts[name]]
        missing = sum(coverage.unfinished(hole) for hole in summary["holes"])
        bad += [f"{missing} not finished"] if missing else []
        return f"Not good: {', '.join(bad) or 'nothing passed'}."
    return "Good: every check that could run passed on the claimed path." + (
        " What was not shown is listed below." if summary["holes"] else ""
    )


def servers(summary: Summary) -> list[tuple[str, str]]:
    """Every server by key, with what is known of it."""
    found = []
    for key, facts in summary["servers"].items():
        parts = {
            "GPU": facts.get("gpu"),
            "GPUs": None if facts.get("gpu") == CPU else facts.get("gpus"),
            "layout": matrix.layout(facts.get("parallel")),
            "K": facts.get("draft_tokens"),
            "backend": facts.get("backend"),
            "longest context": facts.get("max_model_len"),
            "vLLM": facts.get("vllm"),
            "runtime": facts.get("runtime"),
            "profile": (facts.get("profile") or {}).get("name"),
            "random weights": "yes" if facts.get("random_weights") else None,
        }
        found.append(
            (key, " · ".join(f"{label} {value}" for label, value in parts.items() if value not in (None, "")))
        )
    return found


def row(result: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """A result under ``COLUMNS``."""
    seen = result.get("interval") or {}
    steps = seen.get("decode_steps")
    path = f"{seen['on_path']:.0f}/{steps:.0f} {seen['claimed']}" if steps else "–"
    return result["check"], result["outcome"], path, result["statement"]


def by_tier(summary: Summary) -> dict[str, list[Mapping[str, Any]]]:
    """The results by tier, in the order they were found."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for result in summary["results"]:
        found.setdefault(result["check"].partition(".")[0], []).append(result)
    return found


def grids(summary: Summary) -> list[Grid]:
    """The matrix, one grid for each draft length and layout."""
    axes = summary["matrix"]
    if not axes:
        return []
    results = [Result.from_json(result) for result in summary["results"]]
    found = matrix.outcomes(axes, summary["servers"], results)
    return [
        Grid(
            f"{'K not known' if drafts is None else f'K={drafts}'}, {parallel or 'layout not known'}",
            axes["batch"],
            [
                (
                    length,
                    [_cell(found[matrix.Cell(batch, length, drafts, parallel)]) for batch in axes["batch"]],
                )
                for length in axes["context"]
            ],
        )
        for drafts in axes["drafts"]
        for parallel in axes["parallel"]
    ]


def markdown(summary: Summary, name: str) -> str:
    """The report: verdict, servers, results by tier, matrix, holes."""
    lines = [f"# {_cut(title(summary, name))}", "", verdict(summary), ""]
    lines += [f"- server `{key}`: {told}" for key, told in servers(summary)]
    for tier, results in by_tier(summary).items():
        lines += ["", f"## {tier}", "", *_table(COLUMNS, [row(result) for result in results])]
    for grid in grids(summary):
        columns = ("context", *(f"batch {batch}" for batch in grid.batches))
        lines += ["", f"## Matrix, {grid.title}", ""]
        lines += _table(columns, [(str(length), *cells) for length, cells in grid.rows])
    if summary["holes"]:
        lines += ["", "## What was not shown", "", *(f"- {_cut(hole)}" for hole in summary["holes"])]
    return "\n".join(lines) + "\n"


def _cell(result: Result | None) -> str:
    return NOT_ASKED if result is None else result.outcome.value


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", f"|{'|'.join('---' for _ in columns)}|"]
    return [*lines, *(f"| {' | '.join(_cut(cell) for cell in cells)} |" for cells in rows)]


def _cut(text: str) -> str:
    """What Markdown would read as its own is set apart: answers of a model stand in it."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
