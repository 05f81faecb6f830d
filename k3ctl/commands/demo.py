"""``k3ctl demo``: the whole loop on the tiny K3."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import typer

from k3ctl import output
from k3ctl.errors import ExitCode
from k3ctl.output import CommandResult, Lines, Table

SCHEMA = "k3ctl.demo/1"


def register(app: typer.Typer, command: Callable[..., Any]) -> None:
    """Add ``demo``."""
    command(app, "demo", epilog="Example: `k3ctl demo` (what `make demo` runs)")(demo)


def demo() -> CommandResult:
    """Serve the tiny K3 on the CPU, verify its path, bench it, stop it, and print one table.

    Exit 0 when the path is proved and every row of the bench is valid.
    """
    from k3ctl import demo as core
    from k3ctl.commands.serve.narrator import Narrator
    from k3ctl.loadtest import view
    from k3ctl.verdict import check

    narrator = Narrator()
    result = core.run(output.note, narrator.stage, os.environ)
    title = "Tiny random Kimi K3 on the CPU engine (its speed says nothing about a GPU)"
    right = frozenset(core.COLUMNS) - {"path"}
    counted = core.steps_counted(result.verdict)
    lines = [
        *view.findings(result.bench),
        f"path: {result.verdict.grade.value}; {result.verdict.statement}",
        f"engine log: {result.run_dir}/engine.log · bench: {result.bench_dir}",
    ]
    return CommandResult(
        schema=SCHEMA,
        data={
            "verify": check.as_data(result.verdict),
            "counted": counted,
            "bench": result.bench,
            "run_dir": result.run_dir,
            "bench_dir": result.bench_dir,
        },
        blocks=[Table(core.COLUMNS, core.table_rows(result), title, right), Lines(lines)],
        exit_code=ExitCode.OK if result.ok else ExitCode.FAILED,
    )
