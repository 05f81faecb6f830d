"""What to do next on this machine: ``look`` reads it, ``advise`` decides. ``advise`` is pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from k3ctl.engine import preflight, rundir
from k3ctl.engine.rundir import Run
from k3ctl.errors import K3Error
from k3ctl.planning import choice
from k3ctl.planning.selection import Selection

Command = tuple[str, str]
"""What to type, and what it does."""


@dataclass(frozen=True)
class Situation:
    """What matters for the next step."""

    live: Run | None = None
    """The newest run that is ready, else the newest that starts or stops."""
    last: Run | None = None
    """The newest run of all."""
    no_engine: str = ""
    """Why no engine can be started; empty where one can."""
    selection: Selection | None = None
    """What ``plan`` makes of this machine; None where it was not asked, or its GPUs cannot be read."""
    unread: str = ""
    """Why ``selection`` is missing."""


@dataclass(frozen=True)
class Advice:
    """One command, why it is next, and others that fit."""

    command: str
    why: str
    also: tuple[Command, ...] = ()

    def json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        also = [{"command": command, "what": what} for command, what in self.also]
        return {"command": self.command, "why": self.why, "also": also}


def look() -> Situation:
    """Read the runs; the machine and its engine only where no run decides."""
    live, last = rundir.latest_live(), next(iter(rundir.all_runs()), None)
    if live is not None or (last is not None and _failed(last)):
        return Situation(live, last)
    selection, unread, no_engine = None, "", ""
    try:
        selection = choice.for_this_host()
    except K3Error as error:
        unread = "; ".join(error.reasons) or error.message
    try:
        preflight.interpreter()
    except K3Error as error:
        no_engine = error.message
    return Situation(live, last, no_engine, selection, unread)


def advise(now: Situation) -> Advice:
    """The next sensible command."""
    if now.live is not None:
        return _served(now.live)
    if now.last is not None and _failed(now.last):
        return _ended_badly(now.last)
    if now.selection is None:
        why = f"the GPUs of this machine cannot be read ({now.unread})"
        return Advice("k3ctl doctor", why, (("k3ctl plan --hardware GB300:16", "plan for other hardware"),))
    if now.no_engine:
        return _no_engine(now, bool(now.selection.hardware.gpus))
    return _ready_to_serve(now.selection)


def _served(run: Run) -> Advice:
    watch = (f"k3ctl stop {run.id}", "stop it")
    if run.state == "ready":
        why = f"`{run.served_model_name}` is served at {run.url}/v1 (run {run.id})"
        also = (("k3ctl verify", "prove which decode path runs"), ("k3ctl monitor", "watch it live"), watch)
        return Advice("k3ctl bench", why, also)
    return Advice(f"k3ctl logs --follow {run.id}", f"run {run.id} is {run.state}", (watch,))


def _ended_badly(run: Run) -> Advice:
    reason = f": {run.reason}" if run.reason else ""
    also = (
        (f"k3ctl logs {run.id}", "the end of its log"),
        (f"k3ctl serve --profile {run.profile}", "try again"),
    )
    return Advice(f"k3ctl triage --run {run.id}", f"the last run is {run.status()}{reason}", also)


def _no_engine(now: Situation, gpus: bool) -> Advice:
    without = (
        ("k3ctl doctor", "what this machine can run"),
        ("k3ctl plan --hardware GB300:16", "plan for any hardware"),
        ("k3ctl triage FILE", "find the cause in a log"),
        ("k3ctl monitor --url HOST:PORT", "watch a server that runs elsewhere"),
    )
    if preflight.in_checkout():
        return Advice("make setup-gpu" if gpus else "make setup", now.no_engine, without)
    if gpus:
        return Advice("pip install 'k3ctl[gpu,bench]'", now.no_engine, without)
    first, *rest = without
    why = f"{now.no_engine}, and the CPU engine comes with a checkout (`make setup`); this needs none"
    return Advice(first[0], why, tuple(rest))


def _ready_to_serve(selection: Selection) -> Advice:
    best = selection.chosen
    if best is None:
        why = selection.shortfall or f"no profile runs on {selection.hardware.describe()}"
        return Advice("k3ctl plan", why, (("k3ctl doctor", "what is wrong with this machine"),))
    if not selection.hardware.gpus:
        by_hand = ("k3ctl serve", f"serve `{best.profile.name}` and stay with it")
        return Advice(
            "k3ctl demo", "no GPU here: the tiny K3 shows the whole loop in some minutes", (by_hand,)
        )
    also = (
        ("k3ctl doctor", "what this machine can run"),
        ("k3ctl plan", "why this one, and the memory it takes"),
    )
    return Advice("k3ctl serve", f"`k3ctl plan` chooses `{best.command}` ({best.reason})", also)


def _failed(run: Run) -> bool:
    return run.status() in ("failed", "lost")
