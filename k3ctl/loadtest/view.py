"""A summary as text for people: table cells, findings, comparison. Pure; a command or a report lays it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from k3ctl.loadtest import compare, percentiles
from k3ctl.loadtest.compare import Comparison
from k3ctl.loadtest.guards import BURST_INVALID

THROUGHPUT = ("c", "tok/s", "±", "tok/s/GPU", "done", "err", "Little", "AL", "specialized", "verdict")
LATENCY = ("c", "TTFT ms", "p90 TTFT", "ITL ms", "p90 ITL", "tok/s/user", "P90 intvty")
ENERGY = ("c", "J/out tok", "J/tok", "J/query", "W", "W/GPU")
TABLES = (THROUGHPUT, LATENCY, ENERGY)
"""A table of ``ENERGY`` without any figure is left out."""
TEXT_COLUMNS = frozenset({"verdict"})


def title(summary: Mapping[str, Any]) -> str:
    """One line that cannot be quoted without its stamps."""
    unseen = not (summary.get("provenance") or {}).get("seen_running", True)
    names = (
        ("SYNTHETIC", summary["synthetic"]),
        ("PARTIAL", summary["partial"]),
        ("NOT SEEN RUNNING", unseen),
    )
    stamp = "".join(f"{name} · " for name, on in names if on)
    return f"{stamp}{summary['preset']} on {summary['model']}"


def table(summary: Mapping[str, Any], columns: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Columns and formatted rows; a column without any figure is left out."""
    rows = [_cells(row) for row in summary["rows"]]
    kept = [name for name in columns if any(row[name] != "–" for row in rows)]
    return kept, [[row[name] for name in kept] for row in rows]


def tables(summary: Mapping[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
    """The tables of a summary as (title, columns, rows): a title for the first alone, none without figures."""
    made = zip((title(summary), "", ""), (table(summary, columns) for columns in TABLES), strict=True)
    return [(head, names, cells) for head, (names, cells) in made if head or len(names) > 1]


def findings(summary: Mapping[str, Any]) -> list[str]:
    """Deviations, missing steps and every guard's word, one line each."""
    lines = [f"deviation: {text}" for text in summary["deviations"]]
    lines += [f"client stopped, {text} while the server was idle" for text in summary.get("stalled", ())]
    lines += [f"c={c}: not measured" for c in summary["missing_steps"]]
    if not summary["server_answers"]:
        lines.append("invalid: the server did not answer any more at the end")
    for row in summary["rows"]:
        lines += [f"c={row['concurrency']} {f['level']}: {f['text']}" for f in row["findings"]]
        lines += _accepted(row)
    return lines + [f"ranks: {text}" for text in (summary.get("ranks") or {}).get("missing", ())]


def _accepted(row: Mapping[str, Any]) -> list[str]:
    """Acceptance as the requests told it, by prompt length where that is more than one bucket; empty without it."""
    told = row.get("acceptance")
    if told is None:
        return []
    line = (
        f"c={row['concurrency']} acceptance: {told['length']:.2f} tokens per step ({told['steps']} steps of "
        f"{told['requests']} requests; mean over requests {told['request_mean']:.2f})"
    )
    buckets = [
        f"{_span(part)} {part['length']:.2f} ({part['requests']} requests)" for part in told["by_context"]
    ]
    return [f"{line}; by prompt length: {', '.join(buckets)}" if len(buckets) > 1 else line]


def _span(part: Mapping[str, Any]) -> str:
    last = part["to_tokens"]
    return f"{part['from_tokens']}–{last}" if last is not None else f"from {part['from_tokens']}"


def comparison(pairs: Sequence[Comparison]) -> list[str]:
    """One line per pair: side by side with the common resolution, or why not."""
    return [_compared(pair) for pair in pairs]


def _compared(pair: Comparison) -> str:
    head = f"c={pair.ours.conditions['concurrency']}, {pair.other.source}"
    if pair.reasons:
        return f"{head}: not comparable because {'; '.join(pair.reasons)}"
    assert pair.ratio is not None
    wide = pair.other.low != pair.other.high
    there = f"{pair.other.low:g}–{pair.other.high:g}" if wide else f"{pair.other.value:g}"
    noise = "unknown" if pair.noise is None else f"{pair.noise:.1%}"
    unit = compare.UNITS[pair.ours.conditions["unit"]]
    note = f" ({pair.other.note})" if pair.other.note else ""
    change = f"{pair.ratio - 1:+.1%} ± {noise} {pair.verdict}"
    return f"{head}: {pair.ours.value:.1f} here, {there} there, {change}, {unit}{note}"


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    server = row["server"] or {}
    path = server.get("path") or {}
    return {
        "c": str(row["concurrency"]),
        "tok/s": number(row["output_tok_s"], 1),
        "±": "–" if row["resolution_share"] is None else f"{row['resolution_share']:.1%}",
        "tok/s/GPU": number(row["output_tok_s_per_gpu"], 1),
        "done": str(row["requests"]["completed"]),
        "err": str(row["requests"]["errored"]),
        "Little": number(row["little_ratio"], 2),
        "AL": number(server.get("acceptance_length"), 2),
        "specialized": f"{path['specialized']}/{path['decode_and_mixed']}" if path else "–",
        "verdict": "valid" if row["valid"] else "INVALID",
        "TTFT ms": number(row["ttft_ms"]["mean"], 1),
        "p90 TTFT": percentiles.cell(row["ttft_ms"], "p90", 1),
        **_per_token(row),
        **_energy(row["energy"]),
    }


def _energy(energy: Mapping[str, Any]) -> dict[str, str]:
    """Joules and watts of the server's GPUs; dashes where they are not valid."""
    shown = energy if energy["valid"] else {}
    watts, gpus = shown.get("watts"), shown.get("gpus")
    return {
        "J/out tok": number(shown.get("joules_per_output_token"), 3),
        "J/tok": number(shown.get("joules_per_total_token"), 3),
        "J/query": number(shown.get("joules_per_query"), 1),
        "W": number(watts, 0),
        "W/GPU": number(watts / gpus if watts is not None and gpus else None, 0),
    }


def _per_token(row: Mapping[str, Any]) -> dict[str, str]:
    """The client's time per token, or the server's own (marked) where a guard says that the client's is impossible."""
    if not disbelieved(row):
        return {
            "ITL ms": number(row["itl_ms"]["mean"], 2),
            "p90 ITL": percentiles.cell(row["itl_ms"], "p90", 2),
            "tok/s/user": number(row["user_tok_s"], 1),
            "P90 intvty": percentiles.inverse_cell(row["itl_ms"], "p90", 1000.0, 1),
        }
    took = (row["server"] or {}).get("tpot_ms")
    marked = {"ITL ms": took, "tok/s/user": 1000 / took if took else None}
    cells = {name: "–" if value is None else f"{value:.2f} (server's)" for name, value in marked.items()}
    return {**cells, "p90 ITL": "–", "P90 intvty": "–"}


def disbelieved(row: Mapping[str, Any]) -> bool:
    """Whether the client's time per token cannot be true: under half of the server's own. A waiver changes nothing."""
    seen, took = row["itl_ms"]["mean"], (row["server"] or {}).get("tpot_ms")
    return bool(seen is not None and took and seen < BURST_INVALID * took)


def number(value: float | None, digits: int) -> str:
    """A figure, or a dash when it was not measured."""
    return "–" if value is None else f"{value:.{digits}f}"
