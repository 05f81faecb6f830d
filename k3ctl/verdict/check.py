"""From a server or run to a verdict: the entry point of ``verify``, ``serve`` and ``demo``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3ctl import deployment
from k3ctl.engine import rundir
from k3ctl.errors import UsageError
from k3ctl.server import models, which
from k3ctl.server.client import Client
from k3ctl.verdict import probe
from k3ctl.verdict import profile as profiler
from k3ctl.verdict.judge import Drive, Evidence, Verdict, judge


@dataclass(frozen=True)
class Target:
    """A server to judge. ``requested``: its launch asked for the specialized path (None: not known)."""

    url: str
    run_id: str | None = None
    requested: bool | None = None


def target(url: str | None, run_id: str | None) -> Target:
    """The server meant by ``--url`` or ``--run``, by default the newest live run.

    Raises:
        UsageError: both were given, or no run is live.
        EngineError: the run has ended.
    """
    found = which.one(url, run_id)
    run = found.run
    if run is None:
        return Target(found.url)
    return Target(found.url, run.id, deployment.of_run(run).requested)


def check(server: Target, *, rows: int = 4, tokens: int = 48, api_key: str | None = None) -> Verdict:
    """Drive the server at batch 1 and at ``rows``, and judge.

    Raises:
        EngineError: the server is gone or answers errors.
    """
    client = Client(server.url, api_key=api_key)
    with _undisturbed(server):
        model = models.served(client)
        probe.warm_up(client, model)
        phases = [probe.drive(client, model, 1, tokens), probe.drive(client, model, rows, tokens)]
    return judge(Evidence(phases, server.requested))


def profile(server: Target, *, tokens: int = 48, api_key: str | None = None) -> list[Path]:
    """Take a bounded profiler window of a local run; the traces stay where the server wrote them.

    Raises:
        UsageError: the server is not a run of this machine, or has no profiler.
        EngineError: the server is gone, or wrote no trace.
    """
    if server.run_id is None:
        raise UsageError(
            "traces lie on the server's machine",
            hint="run this there, or copy a trace and use `k3ctl verify --trace-file FILE`",
        )
    out = profiler.directory(deployment.of_run(rundir.find(server.run_id)))
    client = Client(server.url, api_key=api_key)
    with _undisturbed(server):
        model = models.served(client)
        probe.warm_up(client, model)
        return profiler.take(client, model, out, tokens)


def _undisturbed(server: Target) -> contextlib.AbstractContextManager[None]:
    """Keeps the supervisor's own canary requests out of the drive, where the server is a run of this machine."""
    if server.run_id is None:
        return contextlib.nullcontext()
    return rundir.quiet(rundir.find(server.run_id).dir)


def as_data(verdict: Verdict) -> Mapping[str, Any]:
    """The verdict for scripts."""
    return {
        "verdict": verdict.grade.value,
        "statement": verdict.statement,
        "specialized_share": verdict.share,
        "reason": verdict.reason,
        "remedy": verdict.remedy,
        "notes": list(verdict.notes),
        "drives": [_drive_data(drive) for drive in verdict.drives],
    }


def _drive_data(drive: Drive) -> Mapping[str, Any]:
    return {
        "rows": drive.rows,
        "tokens": drive.tokens,
        "specialized_share": drive.share,
        "step_ms": drive.step_ms,
        "steps": [
            {
                "path": key.path,
                "kind": key.kind,
                "mode": key.mode,
                "reason": key.reason,
                "steps": count.steps,
                "rows": count.rows,
                "tokens": count.tokens,
            }
            for key, count in drive.steps.items()
        ],
    }
