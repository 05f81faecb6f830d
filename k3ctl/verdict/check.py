"""From a server or run to a verdict: the entry point of ``verify``, ``serve`` and ``demo``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3ctl import deployment
from k3ctl.deployment import Deployment
from k3ctl.engine import rundir
from k3ctl.errors import UsageError
from k3ctl.facts import published
from k3ctl.server import models, which
from k3ctl.server.client import Client
from k3ctl.verdict import drives, profiler
from k3ctl.verdict.evidence import DriveEvidence, missed_batch
from k3ctl.verdict.judge import Drive, Verdict, judge

BATCH_DRIVES = 3
"""At most: requests that did not meet, as on a busy client, are sent again. Every drive is graded."""


@dataclass(frozen=True)
class Target:
    """A server to judge, and what the record of its launch says."""

    url: str
    run_id: str | None = None
    deployment: Deployment = deployment.UNKNOWN


def target(url: str | None, run_id: str | None) -> Target:
    """The server meant by ``--url`` or ``--run``, by default the newest live run.

    Raises:
        UsageError: both were given, or no run is live.
        EngineError: the run has ended.
    """
    found = which.one(url, run_id)
    run = found.run
    return Target(found.url) if run is None else Target(found.url, run.id, deployment.of_run(run))


def check(server: Target, *, rows: int = 4, tokens: int = 48, api_key: str | None = None) -> Verdict:
    """Drive the server at batch 1 and at ``rows``, and judge.

    Raises:
        EngineError: the server is gone or answers errors.
    """
    client = Client(server.url, api_key=api_key)
    with _undisturbed(server):
        model = models.served(client)
        drives.warm_up(client, model)
        phases = [drives.drive(client, model, 1, tokens)]
        for _ in range(BATCH_DRIVES):
            phases.append(drives.drive(client, model, rows, tokens))
            if not missed_batch(phases[-1]):
                break
    return judge(DriveEvidence(phases, server.deployment.requested, published_step_ms(server.deployment)))


def published_step_ms(of: Deployment) -> float | None:
    """Published time of a batch-1 decode step on the specialized path, for exactly this hardware and no drafts."""
    if of.num_speculative_tokens != 0 or None in (of.gpu, of.gpus, of.tensor_parallel_size):
        return None
    rows = [
        row
        for anchor in published.anchors()
        if (anchor.path, anchor.unit, anchor.num_speculative_tokens) == ("specialized", "decode_tok_s", 0)
        and (anchor.gpu, anchor.gpus, anchor.tensor_parallel_size)
        == (of.gpu, of.gpus, of.tensor_parallel_size)
        for row in anchor.rows
        if row.concurrency == 1
    ]
    return 1000 / rows[0].value if rows else None


def take_traces(server: Target, *, tokens: int = 48, api_key: str | None = None) -> list[Path]:
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
        drives.warm_up(client, model)
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
        "decode_steps": drive.decodes,
        "specialized_steps": drive.specialized,
        "step_ms": drive.step_ms,
        "steps": [
            {
                "path": key.path,
                "kind": key.kind,
                "mode": key.mode,
                "reason": key.reason,
                "slots": key.slots,
                "steps": count.steps,
                "rows": count.rows,
                "tokens": count.tokens,
            }
            for key, count in drive.steps.items()
        ],
    }
