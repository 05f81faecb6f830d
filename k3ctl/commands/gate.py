"""``k3ctl gate BASE NEW``: has a deployment become slower, beyond what two measurements can show, or wrong?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3ctl.errors import ExitCode, K3Error, UsageError, unknown
from k3ctl.output import Block, CommandResult, Lines, Table

if TYPE_CHECKING:
    from k3ctl.bundle.kind import Kind
    from k3ctl.loadtest.gate import GateVerdict

EXAMPLE = (
    "Examples: `k3ctl gate bundles/before bundles/after.k3b.tar.gz --threshold 3` · "
    "`k3ctl gate before after --vary versions`"
)
COLUMNS = ("metric", "c", "base", "new", "change", "± resolution", "outcome")


def gate(
    base: Annotated[
        Path, typer.Argument(metavar="BASE", help="Bundle (directory or archive) that is good enough.")
    ],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Bundle that must not be worse.")],
    *,
    threshold: Annotated[
        float, typer.Option("--threshold", metavar="PERCENT", help="Tolerated loss, in percent.")
    ] = 3.0,
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
    compared; a row that could not be compared fails too. To gate a change, name it: ``--vary versions``. Of two
    validations, every check that passed must pass: what is void, unknown or missing now is a regression.
    """
    if threshold < 0:
        raise UsageError(f"--threshold {threshold:g} is negative", hint="give the tolerated loss in percent")
    (kind, before), (other, after) = _opened(base), _opened(new)
    if kind is not other:
        raise UsageError(
            f"`{base}` and `{new}` are not of one kind", hint=f"{kind.schema} and {other.schema}"
        )
    from k3ctl.bundle.write import BENCH

    if kind is BENCH:
        return _of_benches(before, after, threshold, _varied(vary or []), strict=strict)
    return _of_validations(before, after, vary or [], strict=strict)


def _of_benches(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    threshold: float,
    varied: frozenset[str],
    *,
    strict: bool,
) -> CommandResult:
    from k3ctl.loadtest import gate as core
    from k3ctl.loadtest.conditions import CONDITIONS

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


def _of_validations(
    before: Mapping[str, Any], after: Mapping[str, Any], vary: Sequence[str], *, strict: bool
) -> CommandResult:
    from k3ctl.validate import gate as core

    for name in vary:
        if name not in core.SAME_MODEL:
            raise unknown("condition of a validation", name, core.SAME_MODEL)
    reasons = core.refused(before, after, frozenset(vary))
    verdicts = core.compare(before, after)
    if reasons or not any(verdict.base == "passed" for verdict in verdicts):
        raise K3Error(
            "nothing in the two bundles is comparable",
            reasons=reasons or ["no check passed in the base"],
            hint="another model on purpose is named by `--vary model_digest`" if reasons else None,
        )
    failed = list(core.failing(verdicts, strict=strict))
    told = [v for v in verdicts if v in failed or v.outcome != "same"]
    columns = ("check", "server", "base", "new", "outcome", "finding")
    rows = [[v.check, v.server or "–", v.base, v.new, v.outcome, v.statement] for v in told]
    same = sum(v.outcome == "same" for v in verdicts)
    changes = core.changes(before, after)
    lines = [f"{same} of {len(verdicts)} checks as before", *(f"changed: {text}" for text in changes)]
    return CommandResult(
        "k3ctl.gate-validation/1",
        {"verdicts": [asdict(v) for v in verdicts], "changes": changes},
        [*([Table(columns, rows, "gate")] if rows else []), Lines(lines)],
        ExitCode.FAILED if failed else ExitCode.OK,
        [f"{v.check}: {v.outcome}, {v.base} before and {v.new} now" for v in failed],
    )


def _opened(path: Path) -> tuple[Kind, dict[str, Any]]:
    """The kind and the summary of a bundle that verifies."""
    from k3ctl.bundle import archive, verify
    from k3ctl.commands.bundle import kinds

    with archive.opened(path) as directory:
        kind = verify.kind_of(directory, kinds())
        return kind, verify.verified_summary(directory, kind)


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
