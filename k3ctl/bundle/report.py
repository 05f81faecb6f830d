"""A bundle as Markdown: the table and the conditions that a reviewer of a pull request needs. Pure after ``load``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3ctl.bundle import verify
from k3ctl.loadtest import compare
from k3ctl.loadtest import events as ev


@dataclass(frozen=True)
class Loaded:
    """What a report is made of."""

    manifest: Mapping[str, Any]
    summary: Mapping[str, Any]
    events: Sequence[ev.Event]
    verified: bool
    """Whether every check of the bundle passed at the time of rendering."""


def load(directory: Path) -> Loaded:
    """Read a bundle directory; a damaged one is rendered with a warning on top.

    Raises:
        UsageError: it is no bundle.
    """
    checks = verify.verify(directory)
    return Loaded(
        manifest=verify.manifest(directory),
        summary=json.loads((directory / "summary.json").read_text(encoding="utf-8")),
        events=ev.read(directory / "raw" / "events.jsonl"),
        verified=verify.passed(checks),
    )


COLUMNS = (
    "c", "output tok/s", "± %", "tok/s/GPU", "tok/s/user", "TTFT mean / p90 ms", "ITL mean / p90 ms",
    "P90 interactivity tok/s", "AL", "specialized", "requests", "verdict",
)  # fmt: skip


def markdown(loaded: Loaded) -> str:
    """The report: title, conditions, table, findings, comparison with published numbers."""
    parts = [f"### {title(loaded)}", "", *conditions(loaded), "", *_table(COLUMNS, [cells(r) for r in loaded.summary["rows"]])]
    parts += ["", *(f"- {line}" for line in findings(loaded))]
    pairs = compare.against_published(loaded.summary, loaded.summary["asked"]["anchors"])
    if pairs:
        parts += ["", "Against published numbers:", "", *(f"- {line}" for line in comparison_lines(pairs))]
    return "\n".join(parts).rstrip() + "\n"


def title(loaded: Loaded) -> str:
    """One line that cannot be quoted without its stamps."""
    stamps = [name for name, on in (("SYNTHETIC", loaded.summary["synthetic"]), ("PARTIAL", loaded.summary["partial"])) if on]
    stamps += [] if loaded.verified else ["DOES NOT VERIFY"]
    return " · ".join([*stamps, f"{loaded.summary['preset']} on {loaded.summary['model']}"])


def conditions(loaded: Loaded) -> list[str]:
    """Where and how it was measured."""
    deployment, manifest = loaded.summary["deployment"], loaded.manifest
    known = {
        "GPU": deployment["gpu"],
        "GPUs": deployment["gpus"],
        "TP": deployment["tensor_parallel_size"],
        "decode backend": deployment["decode_backend"],
        "K": deployment["num_speculative_tokens"],
        "acceptance": deployment["acceptance"],
        "prefix caching": deployment["prefix_caching"],
        "profile": deployment["profile"],
        "vLLM": deployment["vllm"],
        "client": loaded.summary["client"]["tool"],
        "k3ctl": manifest["k3ctl"],
        "seed": manifest["seed"],
    }
    line = " · ".join(f"{name} {value}" for name, value in known.items() if value is not None)
    status = manifest["validity"]["status"]
    flags = ", ".join(manifest["validity"]["flags"]) or "none"
    return [line, "", f"Validity: **{status}**, flags: {flags}. Bundle `{manifest['id']}`."]


def cells(row: Mapping[str, Any]) -> list[str]:
    """One table row; a row that failed a guard says so in its last cell."""
    server = row["server"] or {}
    path = server.get("path") or {}
    return [
        str(row["concurrency"]),
        number(row["output_tok_s"], 1),
        number(100 * row["resolution_share"] if row["resolution_share"] else None, 1),
        number(row["output_tok_s_per_gpu"], 1),
        number(row["user_tok_s"], 1),
        f"{number(row['ttft_ms']['mean'], 1)} / {number(row['ttft_ms']['p90'], 1)}",
        f"{number(row['itl_ms']['mean'], 2)} / {number(row['itl_ms']['p90'], 2)}",
        number(row["interactivity_p90_tok_s"], 1),
        number(server.get("acceptance_length"), 2),
        f"{path['specialized']}/{path['decode_and_mixed']}" if path else "–",
        str(row["requests"]["completed"]),
        "valid" if row["valid"] else "**invalid**",
    ]


def findings(loaded: Loaded) -> list[str]:
    """Deviations and every guard's word, in order."""
    lines = [f"deviation: {text}" for text in loaded.summary["deviations"]]
    lines += [f"c={c}: not measured" for c in loaded.summary["missing_steps"]]
    for row in loaded.summary["rows"]:
        lines += [f"c={row['concurrency']} {f['level']}: {f['text']}" for f in row["findings"]]
    return lines


def comparison_lines(pairs: Sequence[compare.Comparison]) -> list[str]:
    """One line per pair: side by side, or why not."""
    lines = []
    for pair in pairs:
        unit = compare.UNITS[pair.ours.conditions["unit"]]
        head = f"c={pair.ours.conditions['concurrency']}, {pair.other.source}"
        if pair.reasons:
            lines.append(f"{head}: not comparable because {'; '.join(pair.reasons)}")
            continue
        wide = pair.other.low != pair.other.high
        there = f"{pair.other.low:g}–{pair.other.high:g}" if wide else f"{pair.other.value:g}"
        note = f" ({pair.other.note})" if pair.other.note else ""
        noise = compare.combined(pair.ours.resolution, pair.other.resolution)
        assert pair.ratio is not None
        lines.append(f"{head}: {pair.ours.value:.1f} here, {there} there, {pair.ratio - 1:+.1%} ± {noise:.1%} {pair.verdict}, {unit}{note}")
    return lines


def number(value: float | None, digits: int) -> str:
    """A figure, or a dash when it was not measured."""
    return "–" if value is None else f"{value:.{digits}f}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", f"|{'|'.join('---:' for _ in columns)}|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]
