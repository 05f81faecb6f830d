"""The process between k3ctl and the engine that leaves nothing behind, whatever dies.

It leads the run's session, adopts orphans, waits until its supervisor has ended in whatever way, and then
clears the run's territory: processes, shared-memory segments, scratch directories. It does nothing else, so that
it has no reason to fail. When it is killed itself, the kernel signals the supervisor, which stops the engine
and clears up; when both are killed the kernel kills the API server, and with it every process that descends
from it (``runtime.parent_death``). Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from k3ctl.engine import procs, rundir
from k3ctl.engine.supervisor import Orders, Supervisor
from k3ctl.engine.territory import Territory
from k3ctl.errors import K3Error

TICK_S = 0.25
FIRM = 2
"""Exit status of a supervisor that was asked not to wait."""
_STOP = (signal.SIGTERM, signal.SIGINT)
BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from k3ctl.engine.reaper import main; sys.exit(main())"
)
"""Source of ``python -c``: finds this k3ctl in any working directory and leaves PYTHONPATH to the engine."""


def main() -> int:
    """Entry: run directory and lifeline descriptor (-1: none) as arguments, the orders as JSON on stdin."""
    path, lifeline = Path(sys.argv[1]), int(sys.argv[2])
    orders = Orders(**json.load(sys.stdin))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    procs.set_name("k3ctl-reaper")
    procs.become_subreaper()
    me = os.getpid()
    run = rundir.update(
        path, pid=me, session=me, pid_started=procs.started_at(me) or 0, boot_id=procs.boot_id()
    )
    territory = Territory(me, path / "segments", run.scratch, reaps=True)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_STOP, signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        os._exit(_supervise(path, orders, lifeline, territory))
    if lifeline >= 0:
        os.close(lifeline)
    status = _wait(child, territory)
    firm = os.waitstatus_to_exitcode(status) == FIRM
    territory.clear(grace_s=0.5 if firm else 3.0, log=_note)
    _last_word(path, status)
    return 0


def _supervise(path: Path, orders: Orders, lifeline: int, territory: Territory) -> int:
    """The child: never returns into the reaper's code, whatever happens."""
    try:
        procs.die_with_parent(signal.SIGTERM)
        procs.become_subreaper()
        procs.set_name("k3ctl-supervise")
        supervisor = Supervisor(path, orders, lifeline, territory)
        supervisor.run()
        if os.getppid() != territory.session:
            territory.clear(log=_note)
    except BaseException as error:
        _note(f"supervisor failed: {type(error).__name__}: {error}")
        return 1
    return FIRM if supervisor.firm else 0


def _wait(child: int, territory: Territory) -> int:
    """Wait for the supervisor; pass stop signals on, note new segments. Returns its wait status."""
    while True:
        info = signal.sigtimedwait({*_STOP, signal.SIGCHLD}, TICK_S)
        if info is not None and info.si_signo in _STOP:
            procs.send(child, signal.SIGTERM)
        territory.observe()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 0
            if pid == child:
                return status
            if pid == 0:
                break


def _last_word(path: Path, status: int) -> None:
    """A supervisor that was killed leaves the state open: close it."""
    code = os.waitstatus_to_exitcode(status)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
    # the directory may be gone, or the disk full: the engine is away all the same
    with contextlib.suppress(OSError, K3Error):
        if rundir.read(path).state not in rundir.FINAL_STATES:
            rundir.update(path, state="failed", reason=f"the supervisor {how}", ended_at=time.time())


def _note(text: str) -> None:
    """To the supervisor's own log (stderr of this process)."""
    sys.stderr.write(f"{time.strftime('%m-%d %H:%M:%S')} {text}\n")
    sys.stderr.flush()
