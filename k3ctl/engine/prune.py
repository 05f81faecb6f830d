"""Which directories of ended runs may go, and removing them. A failed run's evidence is kept until someone asks."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence

from k3ctl.engine import rundir
from k3ctl.engine.rundir import Run
from k3ctl.errors import UsageError

KEEP = 20
"""Runs that stopped in order and are kept."""


def stale(
    runs: Sequence[Run], *, keep: int = KEEP, ended_before: float | None = None, failed: bool = False
) -> list[Run]:
    """Ended runs that may go, but for the ``keep`` newest of them; ``runs`` are newest first. Pure but for liveness.

    Without ``failed``, a run that failed, or in which the watch found something, is none of them.
    ``ended_before``: unix seconds.
    """
    ended = [
        run
        for run in runs
        if run.state in rundir.FINAL_STATES
        and not run.alive()
        and (failed or (run.state == "stopped" and not run.findings))
    ]
    return [run for run in ended[keep:] if ended_before is None or _ended_at(run) < ended_before]


def remove(run: Run) -> int:
    """Remove the directory of an ended run; returns the bytes that it held.

    Raises:
        UsageError: the run has not ended, lies elsewhere or belongs to another user, or cannot be removed.
    """
    if run.state not in rundir.FINAL_STATES or run.alive():
        raise UsageError(f"run `{run.id}` has not ended", hint=f"stop it with `k3ctl stop {run.id}`")
    rundir.require_mine(run)
    root = rundir.runs_root().resolve()
    if run.dir.is_symlink() or run.dir.parent.resolve() != root or run.dir.name in ("", ".", ".."):
        raise UsageError(
            f"`{run.dir}` is no run directory of this k3ctl, so it stays",
            hint=f"runs lie directly in `{root}`; remove other directories yourself",
        )
    size = size_bytes(run)
    try:
        shutil.rmtree(root / run.dir.name)
    except OSError as error:
        raise UsageError(f"cannot remove `{run.dir}`: {error.strerror or error}") from error
    return size


def size_bytes(run: Run) -> int:
    """Bytes in the run's directory."""
    total = 0
    for path in run.dir.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def _ended_at(run: Run) -> float:
    return run.ended_at or run.started_at
