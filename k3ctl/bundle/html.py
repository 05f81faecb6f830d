"""A bundle as one self-contained HTML page: what the Markdown report says, and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from k3ctl.bundle import report, svg
from k3ctl.bundle.report import Loaded, rendering
from k3ctl.bundle.svg import Series
from k3ctl.loadtest import compare, view
from k3ctl.loadtest import events as ev

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1b1b1b;background:#fff}
h1{font-size:1.4rem}table{border-collapse:collapse;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}
th,td{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}th{font-weight:600}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(22rem,1fr));gap:1rem}
svg{width:100%;height:auto;border:1px solid #e3e3e3}svg text{font:12px system-ui,sans-serif;fill:#333}
svg .t{font-weight:600;font-size:13px}svg .k{text-anchor:middle}svg .y{text-anchor:end}
svg .a{stroke:#555}svg .g{stroke:#ececec}
.stamp{background:#b3204d;color:#fff;padding:.1rem .5rem;border-radius:.2rem}.invalid{color:#b3204d;font-weight:600}
"""


@rendering
def page(loaded: Loaded) -> str:
    """The page."""
    pairs = compare.against_published(loaded.summary, compare.related(loaded.summary))
    parts = [
        f"<h1>{_title(loaded)}</h1>",
        *(f"<p>{_inline(line)}</p>" for line in report.conditions(loaded) if line),
        _table(*view.table(loaded.summary, report.ALL)),
        _list("Findings", view.findings(loaded.summary)),
        _list("Against published numbers", view.comparison(pairs)),
        f'<div class="plots">{"".join(plots(loaded))}</div>',
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(report.title(loaded))}</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def plots(loaded: Loaded) -> list[str]:
    """Throughput against concurrency, TTFT and ITL distributions, Pareto, acceptance per position."""
    rows = loaded.summary["rows"]
    found = [_throughput(rows), *_distributions(loaded.events), _pareto(rows)]
    return found + [plot for row in rows if (plot := _acceptance(row))]


def _throughput(rows: Sequence[Mapping[str, Any]]) -> str:
    points = [(float(row["concurrency"]), row["output_tok_s"]) for row in rows]
    spread = [row["output_tok_s"] * (row["resolution_share"] or 0.0) for row in rows]
    line = Series("output tok/s", points, spread)
    return svg.chart(
        "Throughput against concurrency (± resolution)",
        "concurrency",
        "output tok/s",
        [line],
        log_x=True,
        x_at_points=True,
    )


def _distributions(events: Sequence[ev.Event]) -> list[str]:
    first: list[Series] = []
    between: list[Series] = []
    for step in ev.steps(list(events)):
        done = [e for e in step if e["kind"] == "request" and e.get("status") == "completed"]
        name = f"c={ev.streams(step)}, n={len(done)}"
        ttft = [e["ttft_ms"] for e in done if e.get("ttft_ms") is not None]
        itl = [
            1000 * e["decode_s"] / (e["out"] - 1)
            for e in done
            if e.get("decode_s") and (e.get("out") or 0) > 1
        ]
        first += [Series(name, svg.ecdf(ttft), marks=False)] if ttft else []
        between += [Series(name, svg.ecdf(itl), marks=False)] if itl else []
    return [
        svg.chart("TTFT of every request, warm-up included", "TTFT ms", "share of requests", first),
        svg.chart("ITL of every request, warm-up included", "ITL ms", "share of requests", between),
    ]


def _pareto(rows: Sequence[Mapping[str, Any]]) -> str:
    per_gpu = all(row["output_tok_s_per_gpu"] is not None for row in rows)
    name = "output_tok_s_per_gpu" if per_gpu else "output_tok_s"
    label = "output tok/s per GPU" if per_gpu else "output tok/s (number of GPUs not known)"
    clouds = [
        Series(f"c={row['concurrency']}", [(row["user_tok_s"], row[name])], line=False)
        for row in rows
        if row["user_tok_s"] is not None and row[name] is not None
    ]
    return svg.chart("Speed of one user against throughput", "tok/s per user", label, clouds)


def _acceptance(row: Mapping[str, Any]) -> str | None:
    rates = (row["server"] or {}).get("acceptance_per_position")
    if not rates:
        return None
    names = [str(position + 1) for position in range(len(rates))]
    return svg.bars(
        f"Acceptance per draft position, c={row['concurrency']}",
        "draft position",
        "accepted share",
        names,
        rates,
    )


def _title(loaded: Loaded) -> str:
    *stamps, text = report.title(loaded).split(" · ")
    marks = "".join(f'<span class="stamp">{escape(stamp)}</span> ' for stamp in stamps)
    return marks + escape(text)


def _inline(text: str) -> str:
    """Markdown's bold and code of the conditions, as HTML."""
    out = escape(text)
    for mark, tag in (("**", "strong"), ("`", "code")):
        pieces = out.split(mark)
        out = "".join(piece if n % 2 == 0 else f"<{tag}>{piece}</{tag}>" for n, piece in enumerate(pieces))
    return out


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(text: str) -> str:
    return f"<td{' class=invalid' if text == 'INVALID' else ''}>{escape(text)}</td>"


def _list(heading: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return f"<h2>{escape(heading)}</h2><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
