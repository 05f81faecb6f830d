"""``k3ctl gate BASE NEW``: has a deployment become slower, beyond what two measurements can show?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3ctl.errors import ExitCode, K3Error, UsageError, unknown
from k3ctl.output import Block, CommandResult, Lines, Table

if TYPE_CHECKING:
    from k3ctl.loadtest.gate import GateVerdict

EXAMPLE = (
    "Examples: `k3ctl gate bundles/before bundles/after.k3b.tar.gz --threshold 3` · "
    "`k3ctl gate before after --vary versions`"
)
COLUMNS = ("metric", "c", "base", "new", "change", "± resolution", "outcome")


def gate(
    base: Annotated[Path, typer.Argument(help="Bundle (directory or archive) that is good enough.")],
    new: Annotated[Path, typer.Argument(help="Bundle that must not be worse.")],
    *,
    threshold: Annotated[float, typer.Option("--threshold", help="Tolerated loss, in percent.")] = 3.0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail also when a row is too coarse to decide.")
    ] = False,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary", metavar="CONDITION", help="A condition that was changed on purpose; repeatable."
        ),
    ] = None,
) -> CommandResult:
    """Compare two bundles; exit 1 on a regression beyond the threshold and both resolutions.

    Both bundles are verified first. Only rows whose guards passed and whose conditions are all known and equal are
    compared; a row that could not be compared fails too. To gate a change, name it: ``--vary versions``.
    """
    from k3ctl.loadtest import gate as core
    from k3ctl.loadtest.conditions import CONDITIONS

    if threshold < 0:
        raise UsageError(f"--threshold {threshold:g} is negative", hint="give the tolerated loss in percent")
    varied = _varied(vary or [])
    before, after = _summary(base), _summary(new)
    verdicts, refused = core.gate(before, after, threshold=threshold / 100, varied=varied)
    reasons = sorted({reason for pair in refused for reason in pair.reasons})
    reasons += core.missing(before, after)
    if not verdicts:
        raise K3Error(
            "nothing in the two bundles is comparable",
            reasons=reasons or ["no valid row in common"],
            hint="what was changed on purpose is named by `--vary CONDITION`" if refused else None,
        )
    failing = {"regression", "undecided"} if strict else {"regression"}
    failed = [verdict for verdict in verdicts if verdict.outcome in failing]
    blocks: list[Block] = [
        Table(
            COLUMNS,
            [_cells(v) for v in verdicts],
            f"gate, threshold {threshold:g} %",
            frozenset(COLUMNS[1:6]),
        )
    ]
    told = [f"changed on purpose: {CONDITIONS[name].label}" for name in sorted(varied)]
    told += [f"not compared: {reason}" for reason in reasons]
    if told:
        blocks.append(Lines(told))
    return CommandResult(
        "k3ctl.gate/1",
        {
            "threshold": threshold / 100,
            "varied": sorted(varied),
            "verdicts": [asdict(v) for v in verdicts],
            "not_compared": reasons,
        },
        blocks,
        ExitCode.FAILED if failed or reasons else ExitCode.OK,
        [f"{v.metric} at c={v.concurrency}: {v.outcome}" for v in failed],
    )


def _varied(names: Sequence[str]) -> frozenset[str]:
    """The conditions by name. Those of a single row cannot be left out: they say what was measured."""
    from k3ctl.loadtest.conditions import CONDITIONS, OF_ROW

    known = [name for name in CONDITIONS if name not in OF_ROW]
    for name in names:
        if name not in known:
            raise unknown("condition", name, known)
    return frozenset(names)


def _summary(path: Path) -> dict[str, Any]:
    """The summary of a bundle that verifies."""
    from k3ctl.bundle import archive, verify

    with archive.opened(path) as directory:
        return verify.verified_summary(directory)


def _cells(verdict: GateVerdict) -> list[str]:
    return [
        verdict.metric,
        str(verdict.concurrency),
        f"{verdict.base:.2f}",
        f"{verdict.new:.2f}",
        f"{verdict.change:+.1%}",
        f"{verdict.resolution:.1%}",
        verdict.outcome,
    ]


def register(app: typer.Typer, command: Callable[..., Any]) -> None:
    """Add the command."""
    command(app, "gate", epilog=EXAMPLE)(gate)
