"""``k3ctl bench PRESET``: load a server with a named workload, judge the numbers, keep the evidence."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from k3ctl import output
from k3ctl.commands.bench import parts
from k3ctl.errors import UsageError
from k3ctl.output import CommandResult, Lines, Table

EXAMPLES = """Examples:

k3ctl bench smoke                                       the newest server that k3ctl started

k3ctl bench 8k1k --against published                    the published command, beside the published numbers

k3ctl bench decode --concurrency 1,8 --duration 60      deviations are recorded in the result

k3ctl bench agentic --sessions 3                        agent sessions with pauses and a subagent

k3ctl bench smoke --url http://10.0.0.5:8000 --tokenizer moonshotai/Kimi-K3
"""
Tool = Literal["guidellm", "aiperf"]


def bench(
    preset: Annotated[str, typer.Argument(help="A preset's name, or the path of a preset file.")] = "",
    *,
    list_presets: Annotated[bool, typer.Option("--list", help="List the presets and stop.")] = False,
    run: Annotated[
        str | None, typer.Option("--run", help="Run id, prefix or directory (default: newest).")
    ] = None,
    url: Annotated[str | None, typer.Option("--url", help="A server that k3ctl did not start.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Served model name (with --url).")] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="Directory or Hugging Face id (with --url).")
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option("--concurrency", help="Requests or sessions in flight, e.g. 1,4,16.")
    ] = None,
    duration: Annotated[float | None, typer.Option("--duration", help="Seconds per concurrency.")] = None,
    requests: Annotated[int | None, typer.Option("--requests", help="Requests per concurrency.")] = None,
    sessions: Annotated[int | None, typer.Option("--sessions", help="Sessions to replay (agentic).")] = None,
    client: Annotated[Tool, typer.Option("--client", help="Who replays agentic sessions.")] = "guidellm",
    against: Annotated[
        str | None, typer.Option("--against", help="`published`, or a bundle to stand beside.")
    ] = None,
    api_key_env: Annotated[
        str, typer.Option("--api-key-env", help="Environment variable that holds the server's API key.")
    ] = "VLLM_API_KEY",
    tui: Annotated[bool, typer.Option("--tui", help="The live screen instead of lines.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Result directory (must not exist).")] = None,
) -> CommandResult:
    """Load a server with a named workload, judge the numbers, keep the evidence as a bundle."""
    from k3ctl.loadtest import driver, view, workload
    from k3ctl.server import which

    if list_presets or not preset:
        return parts.listing()
    load = workload.override(
        workload.load(preset),
        concurrency=parts.numbers(concurrency),
        duration_s=duration,
        requests=requests,
        sessions=sessions,
    )
    if client == "aiperf" and load.sessions is None:
        raise UsageError(
            f"--client aiperf replays sessions, `{load.preset}` has none", hint="it goes with `agentic`"
        )
    if tui and not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise UsageError(
            "--tui needs a terminal", hint="leave it out: one line per second then goes to stderr"
        )
    other = parts.baseline(against)
    key = which.api_key(os.environ, api_key_env)
    record, target = parts.target(run, url, model, tokenizer, key)
    directory = out or driver.new_dir(load.preset)
    if directory.exists():
        raise UsageError(
            f"`{directory}` exists already", hint="choose another --out, results are never overwritten"
        )
    before = parts.hardware()
    output.note(parts.announce(load, target))

    def start(stop: threading.Event, on_line: Callable[[str], None]) -> driver.BenchResult:
        return driver.run(load, target, out=directory, on_line=on_line, tool=client, api_key=key, stop=stop)

    if tui:
        from k3ctl.commands.bench.screen import watch

        result = watch(start, target, record, directory, api_key=key)
    else:
        result = start(threading.Event(), output.note)
    manifest = parts.seal(directory, record, before)
    lines = parts.comparison(result.summary, other)
    tables = [
        Table(*view.table(result.summary, columns), title, frozenset(columns) - view.TEXT_COLUMNS)
        for columns, title in ((view.THROUGHPUT, view.title(result.summary)), (view.LATENCY, ""))
    ]
    text = [*view.findings(result.summary), *lines, f"bundle: {directory}"]
    data = {**result.summary, "bundle": str(directory), "validity": manifest["validity"], "comparison": lines}
    return CommandResult("k3ctl.bench/1", data, [*tables, Lines(text)], result.exit_code)


def register(app: typer.Typer, command: Callable[..., Any]) -> None:
    """Add the command."""
    command(app, "bench", epilog=EXAMPLES)(bench)
