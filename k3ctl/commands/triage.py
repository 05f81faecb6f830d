"""``k3ctl triage``: the first cause in an engine's log, and the one next action."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3ctl import completion
from k3ctl.errors import ExitCode, UsageError
from k3ctl.output import Block, CommandResult, Lines, Table
from k3ctl.redact import Redactor, redactor

if TYPE_CHECKING:
    from k3ctl.triage.scan import Report
    from k3ctl.triage.story import Incident

LogsArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[LOG]...", help="Log files, one per node or rank; default: the latest run's log."
    ),
]
RunOption = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="RUN",
        help="The log of this run; of a group, the logs of all its nodes.",
        autocompletion=completion.runs,
    ),
]


def register(app: typer.Typer, command: Any) -> None:
    """Add the ``triage`` command."""
    command(
        app,
        "triage",
        epilog="Examples: k3ctl triage · k3ctl triage node0.log node1.log · k3ctl triage --run 3f9a --json",
    )(triage)


def triage(logs: LogsArgument = None, run: RunOption = None) -> CommandResult:
    """Find the first cause in an engine's log, group what all ranks report, and name the next action.

    Reads logs of vLLM, NCCL, torch and the kernel as they are, whatever carried them: journald, docker, kubectl, srun,
    torchrun, Ray. Exit code 1 when an error was found, or when the log ends before the server is ready. The rules are
    listed in docs/reference/triage.md.
    """
    from datetime import date

    from k3ctl.triage import scan

    if logs and run:
        raise UsageError("give either log files or --run")
    notes: list[str] = []
    try:
        report = scan.scan(logs) if logs else _scan_run(run, notes)
    except OSError as error:
        raise UsageError(f"cannot read `{error.filename}`: {error.strerror}") from error
    warnings = notes + [
        f"rule `{rule.id}` was due for another look on {rule.expires}: check {rule.source}"
        for rule in scan.expired(report, date.today())
    ]
    first = report.first_cause
    bad = first is not None and first.severity == "error"
    return CommandResult(
        "k3ctl.triage/1",
        as_data(report),
        _blocks(report),
        ExitCode.FAILED if bad else ExitCode.OK,
        warnings,
    )


def as_data(report: Report) -> dict[str, Any]:
    """A report for scripts."""
    return {
        "files": list(report.files),
        "lines": report.lines,
        "size_bytes": report.size_bytes,
        "vllm": report.vllm or None,
        "served": report.served,
        "first_cause": report.first_cause.rule.id if report.first_cause else None,
        "whole": report.whole,
        "incidents": [_hide().value(_incident_data(incident)) for incident in report.incidents],
    }


def _hide() -> Redactor:
    """Lines of a log are shown as they stand there, but for secrets."""
    return redactor(os.environ)


def _incident_data(incident: Incident) -> dict[str, Any]:
    return {
        "rule": incident.rule.id,
        "severity": incident.severity,
        "title": incident.title,
        "cause": incident.cause,
        "action": incident.action,
        "because": incident.because or None,
        "file": incident.first.file,
        "line": incident.first.line,
        "time": incident.first.stamp or None,
        "count": incident.count,
        "who": sorted(incident.who),
        "ranks": sorted(incident.ranks),
        "evidence": incident.evidence,
        "source": incident.rule.source,
        "expires": incident.rule.expires.isoformat(),
    }


def _blocks(report: Report) -> list[Block]:
    first = report.first_cause
    version = f" · vLLM {report.vllm}" if report.vllm else ""
    head = f"{report.lines:,} lines{version} · " + ("had served" if report.served else "had not served yet")
    if first is None:
        found = "no incident found" if report.whole or report.served else "no incident found so far"
        lines = [head, found] + [incident.title for incident in report.incidents]
        return [Lines(lines)]
    lines = [
        head,
        "",
        f"{first.severity}: {first.title}",
        f"  why   {first.cause}",
        f"  next  {first.action}",
        f"  rule  {first.rule.id} · {first.rule.source}",
        f"  seen  {_where(first)}",
        *(f"        {_hide().shown(text)[:200]}" for text in first.evidence),
    ]
    others = report.incidents[1:]
    if not others:
        return [Lines(lines)]
    rows = [[i.severity, i.rule.id, i.title[:120], i.because, _where(i)] for i in others]
    return [Lines([*lines, ""]), Table(["also", "rule", "incident", "follows from", "seen"], rows)]


def _where(incident: Incident) -> str:
    """``line 20, 3 times, by Worker_TP0, Worker_TP2 and Worker_TP4``."""
    file = f"{Path(incident.first.file).name}:" if incident.first.file else "line "
    parts = [f"{file}{incident.first.line}"]
    if incident.first.stamp:
        parts.append(incident.first.stamp)
    if incident.count > 1:
        parts.append(f"{incident.count} times")
    who = sorted(incident.who)
    if who:
        parts.append("by " + (", ".join(who) if len(who) <= 4 else f"{who[0]} and {len(who) - 1} others"))
    return ", ".join(parts)


def _scan_run(run_id: str | None, notes: list[str]) -> Report:
    """The log of a run; how it ends counts only when the run ended by itself."""
    from k3ctl.commands.runs import groups
    from k3ctl.engine import logs, rundir
    from k3ctl.engine.rundir import Run
    from k3ctl.triage import scan

    if run_id:
        run = groups.named(run_id)
        if not isinstance(run, Run):
            return groups.scan(run, notes)
    else:
        runs = rundir.all_runs()
        if not runs:
            raise UsageError("there is no run to look at", hint="name a log file: `k3ctl triage LOG`")
        run = runs[0]
    over = run.status() in ("failed", "lost")
    return scan.scan(logs.parts(run.engine_log), one_log=True, whole=over)
