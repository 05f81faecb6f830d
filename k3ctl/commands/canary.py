"""``k3ctl canary``: ten fixed prompts, and whether the answers are text, and right."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3ctl.commands import RunId, ServerUrl
from k3ctl.errors import ExitCode
from k3ctl.output import CommandResult, Lines, Table

if TYPE_CHECKING:
    from k3ctl.canary.send import Report

SCHEMA = "k3ctl.canary/1"
EPILOG = (
    "Examples: `k3ctl canary` · `k3ctl canary --url http://tray0:8000` · `k3ctl canary --shape-only --json`"
)


def register(app: typer.Typer, command: Callable[..., Any]) -> None:
    """Add ``canary``."""
    command(app, "canary", epilog=EPILOG)(canary)


def canary(
    url: ServerUrl = None,
    run: RunId = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name to ask for, when the server has several.")
    ] = None,
    shape_only: Annotated[
        bool, typer.Option("--shape-only", help="Judge floods, loops and markers, not the answers.")
    ] = False,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=16, max=32768, help="Most tokens per answer, thinking included. Default: 512."
        ),
    ] = None,
) -> CommandResult:
    """Send ten fixed prompts and look for token floods, loops, lost think markers and wrong answers.

    Exit 0 when the answers are text and right (with --shape-only, and for the tiny CPU model, whose weights are random:
    when they are text), 1 when not, 4 when the server is gone. This is a smoke test of seconds, not an accuracy test.
    """
    from k3ctl.canary import send
    from k3ctl.server import models, which
    from k3ctl.server.client import Client

    server = which.ready(which.one(url, run))
    client = Client(server.url, api_key=which.api_key(os.environ))
    try:
        name = models.served(client, model)
        report = send.run(client, name, content=False if shape_only else None, max_tokens=max_tokens)
    finally:
        client.close()
    return result(server.url, report, shape_only=shape_only)


def result(url: str, report: Report, *, shape_only: bool = False) -> CommandResult:
    """The report for people and scripts, with its exit code."""
    from k3ctl.canary.judge import Health

    clean = not any(found.faults for found in report.results)
    passed = report.verdict is Health.HEALTHY or (not report.content and clean)
    silent = all(found.reply.error for found in report.results)
    rows = [
        [
            found.prompt.id,
            "–" if found.right is None else "yes" if found.right else "no",
            str(found.reply.completion_tokens),
            f"{found.reply.seconds:.1f}",
            "; ".join(f"{fault}: {detail}" for fault, detail in found.faults) or "–",
        ]
        for found in report.results
    ]
    lines = [f"{url} `{report.model}`: {report.verdict} — {report.statement}"]
    if not report.content and not shape_only:
        lines.append("note: this model has random weights, so only the shape of its answers was judged")
    if not passed:
        lines.append("hint: `k3ctl verify` names the decode path; `k3ctl triage` reads the engine's log")
    return CommandResult(
        schema=SCHEMA,
        data={"url": url, **as_data(report)},
        blocks=[Lines(lines), Table(("prompt", "right", "tokens", "s", "fault"), rows)],
        exit_code=ExitCode.OK if passed else ExitCode.ENGINE if silent else ExitCode.FAILED,
    )


def as_data(report: Report) -> dict[str, Any]:
    """The report for scripts."""
    return {
        "model": report.model,
        "verdict": report.verdict.value,
        "statement": report.statement,
        "content_judged": report.content,
        "prompts": [
            {
                "id": found.prompt.id,
                "right": found.right,
                "answer": found.reply.text[:200],
                "completion_tokens": found.reply.completion_tokens,
                "finish_reason": found.reply.finish_reason,
                "seconds": round(found.reply.seconds, 3),
                "faults": [{"fault": fault.value, "detail": detail} for fault, detail in found.faults],
            }
            for found in report.results
        ],
    }
