"""A validation as one self-contained HTML page: no script, no font, no picture from elsewhere. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from k3ctl.validate import report
from k3ctl.validate.report import Grid, Summary

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem;color:#1b1b1b;background:#fff}
h1{font-size:1.35rem;overflow-wrap:anywhere}h2{font-size:1.1rem;margin-top:1.8rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .6rem;border-bottom:1px solid #ddd;text-align:left;vertical-align:top;overflow-wrap:anywhere}
th{font-weight:600;white-space:nowrap}td.n{white-space:nowrap}.grid{width:auto}.grid td,.grid th{text-align:center}
.verdict{padding:.6rem .8rem;border-left:.4rem solid #b3204d;background:#fbf1f4}
.verdict.good{border-color:#1a7f4b;background:#eef8f2}
.o{display:inline-block;padding:0 .45rem;border-radius:.2rem;border:1px solid;white-space:nowrap}
.passed{color:#11623a;background:#e6f5ec}.failed{color:#fff;background:#b3204d}.void{color:#7a2d00;background:#ffe3d1}
.unknown{color:#5c4a00;background:#fff3c4}.not-run,.hole{color:#444;background:#eee;border-style:dashed}
details{margin-top:.25rem}summary{cursor:pointer;color:#555;font-size:.85rem}
pre{font-size:.8rem;white-space:pre-wrap;background:#f6f6f6;padding:.5rem;margin:.2rem 0;max-height:24rem;overflow:auto}
.counts span{margin-right:.6rem}
"""


def page(summary: Summary, name: str) -> str:
    """The page."""
    title = report.title(summary, name)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="verdict{" good" if summary["good"] else ""}">{escape(report.verdict(summary))}</p>',
        f'<p class="counts">{_counts(summary["counts"])}</p>',
        _list("Servers", [f"{key}: {told}" for key, told in report.servers(summary)]),
        *(_grid(grid) for grid in report.grids(summary)),
        *(_tier(tier, results) for tier, results in report.by_tier(summary).items()),
        _list("What was not shown", summary["holes"]),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _counts(counts: Mapping[str, int]) -> str:
    return "".join(f"<span>{_outcome(name)} {count}</span>" for name, count in counts.items() if count)


def _outcome(name: str) -> str:
    return f'<span class="o {name.replace(" ", "-")}">{escape(name)}</span>'


def _tier(tier: str, results: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{column}</th>" for column in report.COLUMNS)
    rows = "".join(f"<tr>{_row(result)}</tr>" for result in results)
    return f"<h2>{escape(tier)}</h2><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(result: Mapping[str, Any]) -> str:
    check, outcome, path, finding = report.row(result)
    kept = {
        "shows": result["shows"],
        "evidence": {name: value for name, value in result["evidence"].items() if name != "answers"},
        "interval": result["interval"],
        "seconds": result["seconds"],
    }
    details = escape(json.dumps(kept, indent=1, ensure_ascii=False, default=str))
    return (
        f'<td class="n">{escape(check)}</td><td>{_outcome(outcome)}</td><td class="n">{escape(path)}</td>'
        f"<td>{escape(finding)}<details><summary>evidence</summary><pre>{details}</pre></details></td>"
    )


def _grid(grid: Grid) -> str:
    head = "<th>context</th>" + "".join(f"<th>batch {batch}</th>" for batch in grid.batches)
    rows = "".join(
        f"<tr><th>{length}</th>{''.join(f'<td>{_outcome(cell)}</td>' for cell in cells)}</tr>"
        for length, cells in grid.rows
    )
    return (
        f"<h2>Matrix, {escape(grid.title)}</h2>"
        f'<table class="grid"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    )


def _list(heading: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return f"<h2>{escape(heading)}</h2><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
