"""``k3ctl bench PRESET``: load a server with a named workload and judge the numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3ctl import output
from k3ctl.errors import UsageError
from k3ctl.output import Block, CommandResult, Lines, Table

if TYPE_CHECKING:
    from k3ctl.loadtest.run import BenchResult
    from k3ctl.loadtest.target import Target
    from k3ctl.loadtest.workload import Workload

EXAMPLES = """Examples:

k3ctl bench smoke                                       the newest server that k3ctl started

k3ctl bench 8k1k --against published                    the published command, beside its published numbers

k3ctl bench decode --concurrency 1,8 --duration 60      deviations are recorded in the result

k3ctl bench smoke --url http://10.0.0.5:8000 --tokenizer moonshotai/Kimi-K3
"""


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
        str | None, typer.Option("--concurrency", help="Requests in flight, e.g. 1,4,16.")
    ] = None,
    duration: Annotated[float | None, typer.Option("--duration", help="Seconds per concurrency.")] = None,
    requests: Annotated[int | None, typer.Option("--requests", help="Requests per concurrency.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Result directory (must not exist).")] = None,
) -> CommandResult:
    """Load a server with a named workload and judge the numbers."""
    from k3ctl.loadtest import workload
    from k3ctl.loadtest.run import new_dir
    from k3ctl.loadtest.run import run as run_load

    if list_presets or not preset:
        return _listing()
    load = workload.override(
        workload.load(preset), concurrency=_numbers(concurrency), duration_s=duration, requests=requests
    )
    target = _target(run, url, model, tokenizer)
    directory = out or new_dir(load.preset)
    if directory.exists():
        raise UsageError(
            f"`{directory}` exists already", hint="choose another --out, results are never overwritten"
        )
    output.note(_announce(load, target))
    result = run_load(load, target, out=directory, on_line=output.note)
    return CommandResult(
        schema="k3ctl.bench/1",
        data={**result.summary, "dir": str(result.dir)},
        blocks=blocks(result),
        exit_code=result.exit_code,
    )


def blocks(result: BenchResult) -> list[Block]:
    """The result table and every finding, for people."""
    stamp = "SYNTHETIC " if result.summary["synthetic"] else ""
    stamp += "PARTIAL " if result.summary["partial"] else ""
    table = Table(
        columns=COLUMNS,
        rows=[_cells(row) for row in result.rows],
        title=f"{stamp}bench {result.summary['preset']}: {result.summary['model']}",
        right=frozenset(COLUMNS) - {"verdict"},
    )
    return [table, Lines(_findings(result.summary)), Lines([f"result: {result.dir}"])]


COLUMNS = (
    "c", "output tok/s", "±", "tok/s/user", "TTFT ms", "p90", "ITL ms", "p90", "requests", "errors", "Little",
    "AL", "specialized", "verdict",
)  # fmt: skip


def _cells(row: Mapping[str, Any]) -> list[str]:
    server = row["server"] or {}
    path = server.get("path") or {}
    return [
        str(row["concurrency"]),
        _number(row["output_tok_s"], 1),
        _percent(row["resolution_share"]),
        _number(row["user_tok_s"], 1),
        _number(row["ttft_ms"]["mean"], 1),
        _number(row["ttft_ms"]["p90"], 1),
        _number(row["itl_ms"]["mean"], 2),
        _number(row["itl_ms"]["p90"], 2),
        str(row["requests"]["completed"]),
        str(row["requests"]["errored"]),
        _number(row["little_ratio"], 2),
        _number(server.get("acceptance_length"), 2),
        f"{path['specialized']}/{path['decode_and_mixed']}" if path else "–",
        "valid" if row["valid"] else "INVALID",
    ]


def _findings(summary: Mapping[str, Any]) -> list[str]:
    lines = [f"deviation: {text}" for text in summary["deviations"]]
    lines += [f"c={c}: not measured" for c in summary["missing_steps"]]
    for row in summary["rows"]:
        lines += [f"c={row['concurrency']} {f['level']}: {f['text']}" for f in row["findings"]]
    return lines


def _announce(load: Workload, target: Target) -> str:
    worst = load.worst_case_s()
    limit = "no time limit" if worst is None else f"at most {worst:.0f} s of load"
    if load.duration_s and load.warmup:
        limit += f", the first {load.warmup * load.duration_s:g} s of each step are warm-up"
    return (
        f"{load.preset} on {target.model} at {target.url}: c={','.join(map(str, load.concurrency))}, {limit}"
    )


def _listing() -> CommandResult:
    from k3ctl.loadtest import workload

    loads = [workload.load(name) for name in workload.names()]
    table = Table(
        ("preset", "c", "what"), [[w.preset, ",".join(map(str, w.concurrency)), w.summary] for w in loads]
    )
    return CommandResult("k3ctl.presets/1", {"presets": [w.as_dict() for w in loads]}, [table])


def _target(run: str | None, url: str | None, model: str | None, tokenizer: str | None) -> Target:
    from k3ctl.engine import rundir
    from k3ctl.loadtest import target

    if url and run:
        raise UsageError("--url and --run name two servers", hint="give one of them")
    if url and tokenizer is None:
        try:
            return target.from_run(rundir.find(target.base_url(url)))
        except UsageError:
            pass
    if url:
        return target.from_url(url, model=model, tokenizer=tokenizer)
    found = rundir.find(run) if run else rundir.latest_live()
    if found is None:
        raise UsageError(
            "no server is running", hint="start one with `k3ctl serve --profile NAME`, or give --url"
        )
    return target.from_run(found)


def _numbers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"`--concurrency {text}` is not a list of numbers", hint="for example --concurrency 1,4,16"
        ) from None


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def register(app: typer.Typer, command: Callable[..., Any]) -> None:
    """Add the command."""
    command(app, "bench", epilog=EXAMPLES)(bench)


__all__: Sequence[str] = ["bench", "blocks", "register"]
