"""``k3ctl bench PRESET``: load a server with a named workload, judge the numbers, keep the evidence."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from k3ctl import completion
from k3ctl.commands.bench import parts
from k3ctl.errors import UsageError
from k3ctl.output import CommandResult

EXAMPLES = """Examples:

k3ctl bench                                             the newest server, under its profile's own presets

k3ctl bench smoke                                       the newest server that k3ctl started

k3ctl bench 8k1k --against published                    the published workload, beside the published numbers

k3ctl bench decode --concurrency 1,8 --duration 60      deviations are recorded in the result

k3ctl bench 8k1k --dry-run                              the client's command line, not run

k3ctl bench agentic --sessions 3                        agent sessions with pauses and a subagent

k3ctl bench smoke --url http://10.0.0.5:8000 --tokenizer moonshotai/Kimi-K3

k3ctl bench judge guidellm.json aiperf-folder/          results of other clients under the same guards

k3ctl bench judge guidellm.json --preset 8k1k --against published

k3ctl bench mlperf --concurrency 1,4,16,32,64,128,256   what MLPerf's rules say of this server and curve

k3ctl bench mlperf r1/ r4/ r16/ r32/ r64/ r128/ r256/ --out points
"""
Tool = Literal["guidellm", "aiperf"]


def bench(
    preset: Annotated[
        str,
        typer.Argument(
            help="A preset's name, or a preset file; default: those of the profile that is served. "
            "`judge` judges result files of other clients, `mlperf` an MLPerf Endpoints curve.",
            autocompletion=completion.presets,
        ),
    ] = "",
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Results (after `judge`), run folders (after `mlperf`)."),
    ] = None,
    *,
    list_presets: Annotated[bool, typer.Option("--list", help="List the presets and stop.")] = False,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            help="Run id, prefix or directory (default: newest).",
            autocompletion=completion.live_runs,
        ),
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
    as_preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            help="Workload that a judged result claims to be (with judge).",
            autocompletion=completion.presets,
        ),
    ] = None,
    client: Annotated[Tool, typer.Option("--client", help="Who replays agentic sessions.")] = "guidellm",
    against: Annotated[
        str | None, typer.Option("--against", help="`published`, or a bundle to stand beside.")
    ] = None,
    api_key_env: Annotated[
        str, typer.Option("--api-key-env", help="Environment variable that holds the server's API key.")
    ] = "VLLM_API_KEY",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be executed, secrets hidden; load nothing.")
    ] = False,
    tui: Annotated[bool, typer.Option("--tui", help="The live screen instead of lines.")] = False,
    dataset: Annotated[
        Path | None, typer.Option("--dataset", help="Data set whose digest is checked (with mlperf).")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Result directory (must not exist).")] = None,
) -> CommandResult:
    """Load a server with a named workload, judge the numbers, keep the evidence as a bundle."""
    from k3ctl.commands.bench import dry
    from k3ctl.commands.bench.job import Job
    from k3ctl.loadtest import workload
    from k3ctl.server import which

    if list_presets:
        return parts.listing()
    if dry_run and preset in ("judge", "mlperf"):
        raise UsageError(f"--dry-run prints a client's command, `{preset}` starts none")
    if preset == "judge":
        from k3ctl.commands.bench.judge import judge

        return judge(files or [], as_preset, parts.baseline(against))
    if preset == "mlperf":
        from k3ctl.commands.bench.mlperf import Asked, mlperf

        return mlperf(Asked(files or [], run, url, model, parts.numbers(concurrency), dataset, out))
    if files or as_preset or dataset:
        raise UsageError(
            "files, --preset and --dataset go with `judge` or `mlperf`", hint="`k3ctl bench judge FILE`"
        )

    def load(name: str) -> workload.Workload:
        return workload.override(
            workload.load(name),
            concurrency=parts.numbers(concurrency),
            duration_s=duration,
            requests=requests,
            sessions=sessions,
        )

    named = [load(preset)] if preset else []
    if tui and not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise UsageError(
            "--tui needs a terminal", hint="leave it out: one line per second then goes to stderr"
        )
    other = parts.baseline(against)
    key = which.api_key(os.environ, api_key_env)
    find = dry.target if dry_run else parts.target
    record, target = find(run, url, model, tokenizer, key)
    loads = named or [load(name) for name in parts.usual(record)]
    for each in loads:
        if client == "aiperf" and each.sessions is None:
            raise UsageError(
                f"--client aiperf replays sessions, `{each.preset}` has none", hint="it goes with `agentic`"
            )
    if dry_run:
        return dry.dry_run(loads, target, client, api_key=key, out=out)
    return Job(record, target, client, key, other, tui).all(loads, out)


def register(app: typer.Typer, command: Callable[..., Any]) -> None:
    """Add the command."""
    command(app, "bench", epilog=EXAMPLES)(bench)
