"""``k3ctl doctor``: what this machine or group can run, and why not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3ctl.errors import ExitCode, UsageError, unknown
from k3ctl.output import CommandResult

if TYPE_CHECKING:
    from k3ctl.checks.report import Report
    from k3ctl.profiles.schema import Profile

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[merge FILE...]", help="Judge the reports of several hosts as one group.", show_default=False
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", help="Judge only what this profile needs; exit 3 when some of it fails."),
]
ExplainOption = Annotated[
    str | None, typer.Option("--explain", metavar="ID", help="Print one rule: meaning, remedy, sources.")
]


def register(app: typer.Typer, command: Any) -> None:
    """Add ``doctor``."""
    command(
        app,
        "doctor",
        epilog="Examples: k3ctl doctor · k3ctl doctor --json > node.json · k3ctl doctor merge node*.json · "
        "k3ctl doctor --profile b300-tp8 · k3ctl doctor --explain fabric.status",
    )(doctor)


def doctor(
    words: Words = None, profile: ProfileOption = None, explain: ExplainOption = None
) -> CommandResult:
    """Say what this machine or group can run, and why not. Exit 1 when something failed.

    Reads GPUs by NVML and the host around them; changes nothing and takes no GPU memory.
    """
    if explain:
        return _explain(explain)
    wanted = _profile(profile) if profile else None
    return _result(_report(words or [], wanted))


def _report(words: list[str], profile: Profile | None) -> Report:
    from k3ctl.checks import merge
    from k3ctl.checks.report import judge
    from k3ctl.gpus.collect import reading

    if words:
        if words[0] != "merge":
            raise unknown("action", words[0], ["merge"])
        if len(words) == 1:
            raise UsageError(
                "`k3ctl doctor merge` needs the reports to merge", hint="k3ctl doctor merge node*.json"
            )
        gathered = merge.read(Path(word) for word in words[1:])
        return judge(
            gathered.snapshot,
            gathered.hosts,
            profile=profile,
            profiles=_profiles(),
            extra=gathered.findings,
            notes=gathered.notes,
        )
    read = reading()
    return judge(read.snapshot, {read.host.hostname: read.host}, profile=profile, profiles=_profiles())


def _result(report: Report) -> CommandResult:
    from k3ctl.checks.report import SCHEMA
    from k3ctl.commands.doctor import render

    failed = ExitCode.MACHINE if report.profile else ExitCode.FAILED
    return CommandResult(
        SCHEMA,
        report.to_json(),
        render.blocks(report),
        exit_code=failed if report.failed else ExitCode.OK,
        warnings=report.notes,
    )


def _explain(id_: str) -> CommandResult:
    from k3ctl.checks import RULES
    from k3ctl.commands.doctor import render

    if id_ not in RULES:
        raise unknown("rule", id_, RULES)
    return CommandResult("k3ctl.rule/1", render.rule_json(RULES[id_]), render.rule_blocks(RULES[id_]))


def _profile(name: str) -> Profile:
    from k3ctl.profiles import loader

    return loader.load(name)


def _profiles() -> list[Profile]:
    """Every readable profile; a broken file of the user is `k3ctl profiles list`'s to report."""
    from k3ctl.profiles import loader

    out = []
    for name in loader.names():
        try:
            out.append(loader.load(name))
        except UsageError:
            continue
    return out
