"""``k3ctl bundle``: check, read and pack the evidence that a benchmark or a validation left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3ctl.errors import ExitCode, UsageError
from k3ctl.output import CommandResult, Lines, Table

if TYPE_CHECKING:
    from k3ctl.bundle.kind import Kind

BundleArgument = Annotated[Path, typer.Argument(metavar="BUNDLE", help="Bundle directory or archive.")]


class Format(StrEnum):
    """What a report is rendered as."""

    MARKDOWN = "md"
    HTML = "html"


def verify(path: BundleArgument) -> CommandResult:
    """Check every byte of a bundle and recompute its summary from the raw files; exit 1 when anything differs."""
    from k3ctl.bundle import archive
    from k3ctl.bundle import verify as core

    with archive.opened(path) as directory:
        checks = core.verify(directory, core.kind_of(directory, kinds()))
    rows = [["ok" if check.ok else "FAILED", check.name, check.detail] for check in checks]
    return CommandResult(
        "k3ctl.bundle.verify/1",
        {"path": str(path), "passed": core.passed(checks), "checks": [asdict(check) for check in checks]},
        [Table(("", "check", "result"), rows, title=f"bundle {path.name}")],
        ExitCode.OK if core.passed(checks) else ExitCode.FAILED,
    )


def report(
    path: BundleArgument,
    *,
    format_: Annotated[
        Format, typer.Option("--format", help="md for a pull request, html for a browser.")
    ] = Format.MARKDOWN,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write to this file instead of stdout.")
    ] = None,
) -> CommandResult:
    """Render a bundle: a Markdown table ready for a pull request, or a self-contained HTML page."""
    from k3ctl.bundle import archive

    with archive.opened(path) as directory:
        text = _rendered(directory, format_)
    if out is None:
        return CommandResult(
            "k3ctl.bundle.report/1", {"format": format_.value, "text": text}, [Lines(text.splitlines())]
        )
    if out.exists():
        raise UsageError(f"`{out}` exists already", hint="choose another --out")
    out.write_text(text, encoding="utf-8")
    data = {"format": format_.value, "file": str(out)}
    return CommandResult("k3ctl.bundle.report/1", data, [Lines([f"wrote {out}"])])


def kinds() -> list[Kind]:
    """Every kind of bundle there is."""
    from k3ctl.bundle.write import BENCH
    from k3ctl.validate.bundle import VALIDATION

    return [BENCH, VALIDATION]


def _rendered(directory: Path, format_: Format) -> str:
    from k3ctl.bundle import html, verify
    from k3ctl.bundle import report as bench
    from k3ctl.validate import bundle as validation

    if verify.kind_of(directory, kinds()) is validation.VALIDATION:
        return validation.rendered(directory, "report.html" if format_ is Format.HTML else "report.md")
    loaded = bench.load(directory)
    return html.page(loaded) if format_ is Format.HTML else bench.markdown(loaded)


def pack(
    path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Bundle directory.")],
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Archive to write (default: beside the bundle)."),
    ] = None,
) -> CommandResult:
    """Pack a bundle into one archive; the same bundle always gives the same bytes."""
    from k3ctl.bundle import archive, seal

    directory = path.resolve()
    target = archive.pack(directory, out or directory.with_name(directory.name + archive.SUFFIX))
    digest = seal.digest(target)
    data = {"file": str(target), "sha256": digest, "bytes": target.stat().st_size}
    return CommandResult("k3ctl.bundle.pack/1", data, [Lines([f"{digest}  {target}"])])


def register(app: typer.Typer, command: Callable[..., Any]) -> None:
    """Add the ``bundle`` group."""
    group = typer.Typer(
        name="bundle",
        help="Check, read and pack the evidence of a benchmark or a validation.",
        no_args_is_help=True,
    )
    command(group, "verify", epilog="Example: k3ctl bundle verify results.k3b.tar.gz")(verify)
    command(group, "report", epilog="Example: k3ctl bundle report DIR --format html --out report.html")(
        report
    )
    command(group, "pack", epilog="Example: k3ctl bundle pack DIR --out results.k3b.tar.gz")(pack)
    app.add_typer(group)
