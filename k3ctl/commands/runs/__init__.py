"""``k3ctl ps``, ``k3ctl logs``, ``k3ctl stop``: engines that were started with ``k3ctl serve``, groups of nodes too."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from k3ctl import completion, output
from k3ctl.engine.rundir import Run
from k3ctl.errors import ExitCode, UsageError
from k3ctl.output import CommandResult, Lines, Table
from k3ctl.redact import redactor

RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help="Id of a run or group, its beginning, or its URL; default: the one that is live.",
        autocompletion=completion.runs,
    ),
]
RunsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN]...", help="Ids of runs or groups, or URLs.", autocompletion=completion.live_runs
    ),
]


def register(app: typer.Typer, command: Any) -> None:
    """Add ``ps``, ``logs`` and ``stop``."""
    command(app, "ps", epilog="Examples: k3ctl ps · k3ctl ps --all --json · k3ctl ps --here")(ps)
    command(app, "logs", epilog="Examples: k3ctl logs · k3ctl logs -n 200 3f9a · k3ctl logs -f")(logs)
    command(app, "stop", epilog="Examples: k3ctl stop · k3ctl stop 3f9a · k3ctl stop --all")(stop)


def ps(
    every: Annotated[bool, typer.Option("--all", "-a", help="Show runs that have ended too.")] = False,
    here: Annotated[bool, typer.Option("--here", help="Do not ask the nodes of groups.")] = False,
) -> CommandResult:
    """List the engines that k3ctl runs on this machine, and the groups of nodes that it started from here."""
    from k3ctl.commands.runs import groups
    from k3ctl.engine import rundir

    shown = [run for run in rundir.all_runs() if every or run.live() or run.status() == "lost"]
    rows = [
        [run.id, run.profile, run.status(), run.url, str(run.engine_pid or ""), _age(run), _remark(run)]
        for run in shown
    ]
    table = Table(
        ["run", "profile", "state", "url", "pid", "age", "reason"], rows, right=frozenset({"pid", "age"})
    )
    nothing = Lines(
        ["no engine is running" + ("" if every else "; `k3ctl ps --all` shows the ones that ended")]
    )
    asked = [] if here else groups.asked(every)
    tables = ([table] if rows else []) + groups.tables(asked)
    return CommandResult(
        "k3ctl.ps/1",
        {"runs": [as_data(run) for run in shown], "groups": groups.data(asked)},
        tables or [nothing],
        warnings=rundir.damaged(),
    )


def logs(
    run_id: RunArgument = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the engine ends.")] = False,
) -> CommandResult:
    """Print the end of an engine's log; of a group, every node's."""
    from k3ctl.commands.runs import groups

    run = groups.chosen(run_id)
    if not isinstance(run, Run):
        return groups.logs(run, lines, follow)
    tail = _tail(run, lines)
    if follow:
        _follow(run, tail)
        tail = []
    return CommandResult(
        "k3ctl.logs/1", {"run": run.id, "log": str(run.engine_log), "lines": tail}, [Lines(tail)]
    )


def stop(
    run_ids: RunsArgument = None,
    every: Annotated[bool, typer.Option("--all", help="Stop every running engine.")] = False,
) -> CommandResult:
    """Stop engines and take away whatever they hold: processes, ports, shared memory. A group stops on every node."""
    from k3ctl.commands.runs import groups
    from k3ctl.engine import launch, rundir

    if every and run_ids:
        raise UsageError("give either run ids or --all")
    chosen = groups.everything() if every else [groups.chosen(name) for name in run_ids or ("",)]
    stopped = groups.stop([one for one in chosen if not isinstance(one, Run)])
    ended = [launch.stop(one) for one in chosen if isinstance(one, Run)]
    lines = [f"{run.id}: {run.state}" for run in ended] + groups.stop_lines(stopped)
    data = {"runs": [as_data(run) for run in ended], "groups": groups.data(stopped)}
    left = any(run.status() not in rundir.FINAL_STATES for run in ended) or not groups.all_over(stopped)
    code = ExitCode.FAILED if left else ExitCode.OK
    return CommandResult("k3ctl.stop/1", data, [Lines(lines or ["no engine is running"])], code)


def as_data(run: Run) -> dict[str, Any]:
    """A run for scripts."""
    return {
        "id": run.id,
        "profile": run.profile,
        "state": run.status(),
        "url": run.url,
        "host": run.host,
        "port": run.port,
        "served_model_name": run.served_model_name,
        "pid": run.pid,
        "engine_pid": run.engine_pid,
        "started_at": run.started_at,
        "ready_at": run.ready_at,
        "ended_at": run.ended_at,
        "exit_code": run.exit_code,
        "reason": run.reason,
        "findings": [dict(finding) for finding in run.findings],
        "run_dir": str(run.dir),
        "log": str(run.engine_log),
    }


def _tail(run: Run, count: int, window_bytes: int = 4 << 20) -> Sequence[str]:
    """The last lines, from the last megabytes at most."""
    from k3ctl.engine import logs

    try:
        text = logs.tail(run.engine_log, window_bytes).decode(errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read `{run.engine_log}`: {error.strerror or error}") from error
    hide = redactor(os.environ)
    # not splitlines: it also splits at marks that a line may hold, so that `-n 1` would show half of one
    lines = text.removesuffix("\n").split("\n")
    return [hide.shown(line) for line in lines[-count:]] if count and text else []


def _follow(run: Run, tail: Sequence[str]) -> None:
    from k3ctl.engine import rundir
    from k3ctl.engine.logs import LogFollower

    for line in tail:
        output.write_text(line)
    follower, hide = LogFollower(run.engine_log, from_end=True), redactor(os.environ)
    alive = True
    while alive:
        # asked before reading: lines that come with the end are still shown
        alive = rundir.read(run.dir).live()
        for line in follower.lines():
            output.write_text(hide.shown(line))
        time.sleep(0.2 if alive else 0)


def _remark(run: Run) -> str:
    """Why the run ended, or what the watch found last and has not seen end."""
    if run.reason or not run.findings:
        return run.reason
    last = run.findings[-1]
    return "" if last["kind"] in ("resumed", "answers") else f"{last['kind']}: {last['text']}"


def _age(run: Run) -> str:
    from k3ctl.engine.stages import duration

    return duration((run.ended_at or time.time()) - run.started_at)
