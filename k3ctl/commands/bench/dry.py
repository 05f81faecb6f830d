"""``k3ctl bench PRESET --dry-run``: what would be executed, word for word, without a server or a client."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3ctl.commands.bench import parts
from k3ctl.errors import K3Error, UsageError
from k3ctl.output import CommandResult, Lines
from k3ctl.redact import PLAIN

if TYPE_CHECKING:
    from k3ctl.loadtest.target import Target
    from k3ctl.loadtest.workload import Workload

SCHEMA = "k3ctl.bench-dry-run/1"
OF_THE_RUN = ("K3CTL_BENCH_PARENT",)
"""Set anew by every run: the process id of k3ctl."""


def dry_run(
    loads: Sequence[Workload], to: Target, tool: str, *, api_key: str | None, out: Path | None
) -> CommandResult:
    """Every client process of every workload: directory, variables and command line, secrets hidden."""
    benches = [_bench(load, to, tool, api_key, _directory(load, loads, out)) for load in loads]
    lines = [line for bench in benches for line in _lines(bench)]
    return CommandResult(SCHEMA, {"benches": benches}, [Lines(lines)], warnings=_missing(tool))


def target(
    run: str | None, url: str | None, model: str | None, tokenizer: str | None, api_key: str | None
) -> tuple[Any, Target]:
    """The server that would be loaded; it need not answer where --url, --model and --tokenizer name all of it.

    Raises:
        UsageError: it is not known which server is meant.
    """
    try:
        return parts.target(run, url, model, tokenizer, api_key)
    except UsageError as error:
        if url or run:
            raise
        hint = "without a server give --url, --model and --tokenizer"
        raise UsageError(error.message, hint=hint, reasons=error.reasons) from error


def _directory(load: Workload, loads: Sequence[Workload], out: Path | None) -> Path:
    from k3ctl.loadtest import driver

    if out is None:
        return driver.new_dir(load.preset)
    return (out if len(loads) == 1 else out / Path(load.preset).stem).absolute()


def _bench(load: Workload, to: Target, tool: str, api_key: str | None, directory: Path) -> dict[str, Any]:
    from k3ctl.loadtest import clients

    parent = dict(os.environ)
    environ = clients.child_env(parent, load, to, api_key)
    own = {
        name: str(PLAIN.value(value, name))
        for name, value in environ.items()
        if name not in OF_THE_RUN and parent.get(name) != value
    }
    found = clients.commands(load, to, tool, _aiperf_program() if tool == "aiperf" else "")
    return {
        "preset": load.preset,
        "deviations": list(load.deviations),
        "directory": str(directory / "raw"),
        "environment": own,
        "runs": [
            {
                "concurrency": count,
                "report": one.report,
                "command": list(PLAIN.argv(one.command)),
                "typed": list(PLAIN.argv(one.argv)),
            }
            for count, one in zip(load.concurrency, found, strict=True)
        ],
    }


def _lines(bench: Mapping[str, Any]) -> list[str]:
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in bench["environment"].items())
    lines = [f"# {bench['preset']}: not run", *(f"# deviation: {text}" for text in bench["deviations"])]
    lines += [f"cd {shlex.quote(bench['directory'])}", f"export {variables}"]
    for one in bench["runs"]:
        lines += [f"# c={one['concurrency']}, writes {one['report']}", shlex.join(one["command"])]
    return lines


def _aiperf_program() -> str:
    from k3ctl.loadtest import clients

    try:
        return clients.aiperf_path()
    except K3Error:
        return "aiperf"


def _missing(tool: str) -> list[str]:
    """What would keep the run from starting here."""
    from k3ctl.loadtest import clients

    try:
        clients.version(tool)
    except K3Error as error:
        return [f"{error.message}: {error.hint}"]
    return []
