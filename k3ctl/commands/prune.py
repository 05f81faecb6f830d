"""``k3ctl prune``: remove the directories of runs that have ended."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from k3ctl import completion
from k3ctl.errors import UsageError
from k3ctl.output import CommandResult, Lines

DAY_S = 86400.0

RunsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN]...",
        help="These runs, whatever the other options say.",
        autocompletion=completion.ended_runs,
    ),
]
KeepOption = Annotated[
    int | None, typer.Option("--keep", min=0, metavar="N", help="How many of the newest stay; default 20.")
]
OlderOption = Annotated[
    float | None,
    typer.Option("--older-than", min=0, metavar="DAYS", help="Only runs that ended longer ago than this."),
]
FailedOption = Annotated[
    bool, typer.Option("--failed", help="Also runs that failed, or in which something was found.")
]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")]


def register(app: typer.Typer, command: Any) -> None:
    """Add the ``prune`` command."""
    command(
        app,
        "prune",
        epilog="Examples: k3ctl prune · k3ctl prune --failed --older-than 30 --dry-run · k3ctl prune 3f9a",
    )(prune)


def prune(
    run_ids: RunsArgument = None,
    keep: KeepOption = None,
    older_than: OlderOption = None,
    failed: FailedOption = False,
    dry_run: DryOption = False,
) -> CommandResult:
    """Remove the directories of runs that have ended: their logs, witness pages and evidence.

    Without options it does what every `k3ctl serve` does at its start: of the runs that stopped in order the 20
    newest stay. Failed runs are kept until --failed, or their name, is given.
    """
    from k3ctl.engine import prune as pruning
    from k3ctl.engine import rundir

    if run_ids and (failed or keep is not None or older_than is not None):
        raise UsageError("give either run ids or rules")
    if run_ids:
        chosen = [rundir.find(run_id) for run_id in run_ids]
    else:
        limit = None if older_than is None else time.time() - older_than * DAY_S
        kept = pruning.KEEP if keep is None else keep
        chosen = pruning.stale(rundir.all_runs(), keep=kept, ended_before=limit, failed=failed)
    act = pruning.size_bytes if dry_run else pruning.remove
    removed = [(run.id, act(run)) for run in chosen]
    verb = "would remove" if dry_run else "removed"
    lines = [f"{verb} {name} ({size / 1e6:.1f} MB)" for name, size in removed] or ["nothing to remove"]
    data = {
        "dry_run": dry_run,
        "runs": [{"id": name, "size_bytes": size} for name, size in removed],
    }
    return CommandResult("k3ctl.prune/1", data, [Lines(lines)])
