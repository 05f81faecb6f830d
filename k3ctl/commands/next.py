"""``k3ctl next``, and ``k3ctl`` alone: what to type next on this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from k3ctl.output import CommandResult, Lines

SCHEMA = "k3ctl.next/1"


def register(app: typer.Typer, command: Callable[..., Any]) -> None:
    """Add ``next``."""
    command(app, "next", epilog="Examples: k3ctl · k3ctl next --json")(next_)


def next_() -> CommandResult:
    """Say the next sensible command for this machine; `k3ctl` alone does the same.

    Looks at the runs, the GPUs and the installed engine. Changes nothing, and exits 0 whatever it finds.
    """
    from k3ctl.engine import rundir
    from k3ctl.planning import advice

    said = advice.advise(advice.look())
    width = max(len(command) for command, _ in ((said.command, ""), *said.also))
    lines = [said.why, "", f"next:  {said.command}"]
    lines += [
        f"{'also:' if first else '':5}  {command.ljust(width)}  {what}"
        for first, (command, what) in zip((True, *(False,) * len(said.also)), said.also, strict=False)
    ]
    lines += ["", "`k3ctl --help` lists every command"]
    return CommandResult(SCHEMA, said.json(), [Lines(lines)], warnings=rundir.damaged())
