"""``k3ctl validate TIER…``: correctness evidence on the path that really ran."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from k3ctl.commands import RunId, ServerUrl
from k3ctl.errors import UsageError
from k3ctl.output import CommandResult

EXAMPLES = """Examples:

k3ctl validate                                   the canary tier on the newest server

k3ctl validate canary features --out runs/today  two tiers into one directory

k3ctl validate features --out runs/today --resume   go on where it was interrupted

k3ctl validate features --only 'features.sampling.*'

k3ctl validate ab --other http://tray1:8000      two servers, token by token

k3ctl validate ab --against runs/before          the same server before a change

k3ctl validate --matrix --drafts 0,7 --out runs/matrix            batch × context on this server

k3ctl validate --matrix --drafts 0,7 --out runs/matrix --resume   the next server of the same matrix

k3ctl validate --list                            every check, what it shows, how long it takes
"""


def validate(
    tiers: Annotated[
        list[str] | None, typer.Argument(metavar="[TIER]...", help="Tiers to run. Default: canary.")
    ] = None,
    *,
    list_checks: Annotated[bool, typer.Option("--list", help="List the checks and stop.")] = False,
    url: ServerUrl = None,
    run: RunId = None,
    model: Annotated[str | None, typer.Option(help="Name to ask for, when the server has several.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PATTERN", help="Only checks of this name; repeatable."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="A check's own option; repeatable."),
    ] = None,
    other: Annotated[
        str | None, typer.Option(help="Second server of the ab tier: its address, or a run id.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Instead of --other: result directory of an earlier ab tier.")
    ] = None,
    with_matrix: Annotated[
        bool, typer.Option("--matrix", help="Batch × context on this server; drafts × layout over servers.")
    ] = False,
    batches: Annotated[str | None, typer.Option(help="Axis of the matrix, e.g. 1,2,8,64 (default).")] = None,
    contexts: Annotated[
        str | None, typer.Option(help="Axis in tokens. Default: 128, 512, 4096, … up to the longest.")
    ] = None,
    drafts: Annotated[
        str | None, typer.Option(help="Axis of draft lengths, e.g. 0,3,7. Default: this server's.")
    ] = None,
    layouts: Annotated[
        str | None, typer.Option(help="Axis of layouts, e.g. TP8,TP16,TP8-PP2. Default: this server's.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Result directory (must not exist).")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on in --out; finished checks are kept, not run again.")
    ] = False,
) -> CommandResult:
    """Check that a server answers correctly, and that it did so on the path it claims.

    Every result carries what the witness counted while it was found. A check whose decode steps were not on the claimed
    path is void, never passed. Exit 0 when every check that could run passed, 1 when one failed, is void or unknown, or
    none could run, 4 when the server is gone.
    """
    from k3ctl.commands.validate import job
    from k3ctl.validate import tiers as known

    axes = job.axes(with_matrix, batches=batches, contexts=contexts, drafts=drafts, layouts=layouts)
    asked = tuple(tiers or (() if with_matrix else ("canary",)))
    checks = known.checks(asked if tiers or not list_checks else known.TIERS, only or ())
    if list_checks:
        return job.listing(checks)
    if resume and out is None:
        raise UsageError("--resume needs the directory to go on in", hint="add `--out DIR`")
    if other and against:
        raise UsageError("--other and --against name two other sides", hint="give one of them")
    own = job.options(option or []) | ({"against": str(against.absolute())} if against else {})
    named = (*asked, *(("matrix",) if axes is not None else ()))
    return job.Job(named, checks, own, out, resume, other, axes).run(url, run, model, os.environ)


def register(app: typer.Typer, command: Callable[..., Any]) -> None:
    """Add the command."""
    command(app, "validate", epilog=EXAMPLES)(validate)
