"""``k3ctl verify``: prove that the specialized decode path runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3ctl.commands import RunId, ServerUrl
from k3ctl.errors import ExitCode, UsageError
from k3ctl.output import Block, CommandResult, Lines, Table

if TYPE_CHECKING:
    from k3ctl.verdict.judge import Drive, Verdict
    from k3ctl.verdict.trace import TraceReport

EPILOG = (
    "Examples: `k3ctl verify` · `k3ctl verify --url http://127.0.0.1:8000 --rows 8` · "
    "`k3ctl verify --require consistent` · `k3ctl verify --trace` · `k3ctl verify --trace-file rank0.trace.json.gz`"
)
SCHEMA = "k3ctl.verify/1"
REQUIREMENTS = ("proved", "consistent")
FRONT_END = ".async_llm"


def register(app: typer.Typer, command: Callable[..., Any]) -> None:
    """Add ``verify``."""
    command(app, "verify", epilog=EPILOG)(verify)


def verify(
    url: ServerUrl = None,
    run: RunId = None,
    rows: Annotated[
        int, typer.Option(metavar="N", min=2, max=512, help="Concurrent requests of the batch drive.")
    ] = 4,
    tokens: Annotated[int, typer.Option(metavar="N", min=4, max=8192, help="Tokens per request.")] = 48,
    require: Annotated[
        str, typer.Option(metavar="GRADE", help="Weakest grade that exits 0: proved or consistent.")
    ] = "proved",
    trace: Annotated[
        bool, typer.Option("--trace", help="Judge by a short profiler window instead of counters.")
    ] = False,
    trace_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Judge a saved torch profiler trace; no server needed."),
    ] = None,
) -> CommandResult:
    """Drive decodes, count the path each step took, and say whether the fast path is really running.

    Exit 0 when the required grade is reached, 1 when not, 4 when the server is gone.
    """
    if trace_file is not None:
        return traced([trace_file])
    from k3ctl.server import which
    from k3ctl.verdict import check
    from k3ctl.verdict.judge import Grade

    key = which.api_key(os.environ)
    if trace:
        return traced(check.take_traces(check.target(url, run), tokens=tokens, api_key=key))
    if require not in REQUIREMENTS:
        raise UsageError(f"`--require {require}` is not one of {', '.join(REQUIREMENTS)}")
    target = check.target(url, run)
    verdict = check.check(target, rows=rows, tokens=tokens, api_key=key)
    enough = {Grade.PROVED} if require == "proved" else {Grade.PROVED, Grade.CONSISTENT}
    return CommandResult(
        schema=SCHEMA,
        data={"url": target.url, "run": target.run_id, "require": require, **check.as_data(verdict)},
        blocks=blocks(target.url, verdict),
        exit_code=ExitCode.OK if verdict.grade in enough else ExitCode.FAILED,
    )


def blocks(url: str, verdict: Verdict) -> list[Block]:
    """The verdict for people."""
    lines = [f"{url}: {verdict.grade} — {verdict.statement}"]
    if verdict.reason:
        lines.append(f"reason: {verdict.reason}")
    if verdict.remedy:
        lines.append(f"hint: {verdict.remedy}")
    lines += [f"note: {note}" for note in verdict.notes]
    rows = [row for drive in verdict.drives for row in _rows(drive)]
    if not rows:
        return [Lines(lines)]
    columns = ("batch", "path", "content", "mode", "reason", "steps", "rows", "tokens")
    return [Lines(lines), Table(columns, rows, right=frozenset({"batch", "steps", "rows", "tokens"}))]


def traced(files: Sequence[Path]) -> CommandResult:
    """Verdict of profiler traces, one per rank; every rank must prove the same number of steps.

    The API server's own trace, which has no kernels, is set aside by the name that vLLM gives it.
    """
    from k3ctl.verdict import kernels, trace

    ranks = [file for file in files if FRONT_END not in file.name]
    reports = [trace.summarize(kernels.read(file)) for file in ranks or files]
    verdict = trace.verdict(reports)
    shown = next((report for report in reports if report.kernels), reports[0])
    lines = Lines([trace.statement(reports), *(f"trace: {file}" for file in files)])
    return CommandResult(
        schema="k3ctl.verify-trace/1",
        data={
            "verdict": verdict,
            "files": [str(file) for file in files],
            "ranks": [trace.as_data(report) for report in reports],
            "published": trace.published(),
        },
        blocks=[lines, *_trace_tables(shown)],
        exit_code=ExitCode.OK if verdict == "proved" else ExitCode.FAILED,
    )


def _trace_tables(report: TraceReport) -> list[Block]:
    tables: list[Block] = []
    if report.layers:
        rows = [
            [kind.name, str(kind.layers)]
            + [f"{value:.0f}" for value in (kind.kernels, kind.streams)]
            + [f"{value:.1f}" for value in (kind.kernel_us, kind.us)]
            for kind in report.layers
        ]
        columns = ("standard layer", "layers", "kernels", "streams", "kernel µs", "µs")
        tables.append(Table(columns, rows, right=frozenset(columns[1:])))
    if report.by_part:
        rows = [[part, str(count), f"{total / 1000:.3f}"] for part, (count, total) in report.by_part.items()]
        tables.append(Table(("part of a step", "kernels", "ms"), rows, right=frozenset({"kernels", "ms"})))
    return tables


def _rows(drive: Drive) -> list[list[str]]:
    return [
        [
            str(drive.rows),
            key.path,
            key.kind,
            key.mode,
            key.reason or "-",
            f"{count.steps:.0f}",
            f"{count.rows:.0f}",
            f"{count.tokens:.0f}",
        ]
        for key, count in sorted(drive.steps.items(), key=lambda item: -item[1].steps)
    ]
