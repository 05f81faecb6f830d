"""``k3ctl known-bad``: servers that are broken on purpose, and whether ``k3ctl validate`` sees it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3ctl.commands import RunId, ServerUrl
from k3ctl.errors import ExitCode, UsageError
from k3ctl.output import CommandResult, Lines, Table

if TYPE_CHECKING:
    from k3ctl.server.which import Server
    from k3ctl.validate.selftest import Trial

SCHEMA = "k3ctl.known-bad/1"
EXAMPLES = (
    "Examples: `k3ctl known-bad` lists the faults · `k3ctl known-bad flood --port 8100` puts one before the newest "
    "server, on loopback, until Ctrl-C · `k3ctl known-bad --try` shows for every fault that its check sees it · "
    "`k3ctl known-bad 'tool-*' --try --every`"
)


def known_bad(
    modes: Annotated[
        list[str] | None, typer.Argument(metavar="[FAULT]...", help="Faults by name or pattern.")
    ] = None,
    *,
    attempt: Annotated[
        bool, typer.Option("--try", help="Run the checks against each fault, a sound server first.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--every", help="With --try: all checks of canary and features on every fault.")
    ] = False,
    url: ServerUrl = None,
    run: RunId = None,
    other: Annotated[
        str | None, typer.Option(help="Server that answers for the fault `other-model`.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on loopback. 0: a free one.")] = 0,
) -> CommandResult:
    """Put a known fault before a sound server, to see that a check can fail.

    Without a fault: list them. With --try: exit 0 when every fault was caught by its check and the sound server passed,
    1 when one was missed, could not be tried, or a check failed that the fault is none of.
    """
    from k3ctl.server import which
    from k3ctl.validate import selftest

    if every and not attempt:
        raise UsageError("--every is about --try", hint="add --try")
    if not modes and not attempt:
        return listing()
    chosen = selftest.chosen(modes or ())
    server, second = which.ready(which.one(url, run)), which.base_url(other) if other else None
    if attempt:
        return tried(server, chosen, every=every, other=second)
    if len(chosen) != 1:
        raise UsageError(f"{len(chosen)} faults are meant, one server has one", hint="name one, or add --try")
    if chosen[0].other and second is None:
        raise UsageError(
            f"`{chosen[0].name}` needs a server that answers instead", hint="name it with --other"
        )
    return serve(server.url, chosen[0], second, port)


def listing() -> CommandResult:
    """The faults with the checks that see them."""
    from k3ctl.knownbad.modes import MODES

    rows = [[m.name, m.told, m.check + (" (void)" if m.void else "")] for m in MODES.values()]
    data = [
        {
            "name": m.name,
            "fault": m.told,
            "like": m.like,
            "check": m.check,
            "may_fail_too": sorted(m.also),
            "void": m.void,
        }
        for m in MODES.values()
    ]
    return CommandResult(
        "k3ctl.known-bad-list/1", {"faults": data}, [Table(("fault", "what is wrong", "seen by"), rows)]
    )


def serve(upstream: str, mode: Any, other: str | None, port: int) -> CommandResult:
    """Hold the proxy until Ctrl-C. Raises UsageError when the port is taken."""
    from k3ctl import output
    from k3ctl.knownbad import proxy

    try:
        with proxy.serve(upstream, mode, other=other, port=port) as address:
            output.note(f"{address} is {upstream} with a fault: {mode.told}")
            output.note(
                f"`k3ctl validate … --url {address} --only {mode.check}` should see it; Ctrl-C ends it"
            )
            while True:
                time.sleep(3600)
    except OSError as error:
        raise UsageError(f"port {port} cannot be used: {error.strerror or error}") from error


def tried(server: Server, modes: Sequence[Any], *, every: bool, other: str | None) -> CommandResult:
    """Every fault against its checks. Raises EngineError when the server is gone."""
    from k3ctl import output
    from k3ctl.server import which
    from k3ctl.server.client import Client
    from k3ctl.validate import facts, selftest, tiers

    key = which.api_key(os.environ)
    client = Client(server.url, api_key=key)
    try:
        known = facts.gather(client, server.run)
    finally:
        client.close()
    checks = tiers.checks(["canary", "features"])
    run = selftest.run(server.url, known, modes, checks, output.note, api_key=key, every=every, other=other)
    trials = list(run)
    return told(server.url, trials)


def told(url: str, trials: Sequence[Trial]) -> CommandResult:
    """The trials for people and scripts, with the exit code."""
    bad = [trial for trial in trials if trial.mode is not None]
    sound = [trial for trial in trials if trial.mode is None]
    good = all(trial.caught for trial in bad) and not any(trial.strays for trial in trials)
    rows = [[t.name, _verdict(t), ", ".join(t.seen) or "–", ", ".join(t.strays) or "–"] for t in trials]
    caught = sum(trial.caught is True for trial in bad)
    lines = [f"{url}: {caught} of {len(bad)} faults caught by their check"]
    lines += [
        f"sound server: {result.check} — {result.statement}"
        for t in sound
        for result in t.results
        if result.check in t.seen
    ]
    lines += [
        f"{t.name}: {r.check} {r.outcome} — {r.statement}" for t in bad if not t.caught for r in t.named
    ]
    data = {
        "url": url,
        "caught": caught,
        "trials": [
            {
                "fault": trial.name,
                "caught": trial.caught,
                "seen_by": list(trial.seen),
                "strays": list(trial.strays),
                "results": [result.json() for result in trial.results],
            }
            for trial in trials
        ],
    }
    table = Table(("fault", "", "seen by", "not of this fault"), rows)
    return CommandResult(SCHEMA, data, [table, Lines(lines)], ExitCode.OK if good else ExitCode.FAILED)


def _verdict(trial: Trial) -> str:
    if trial.mode is None:
        return "sound" if not trial.seen else "NOT SOUND"
    return {True: "caught", False: "MISSED", None: "not tried"}[trial.caught]


def register(app: typer.Typer, command: Callable[..., Any]) -> None:
    """Add the command."""
    command(app, "known-bad", epilog=EXAMPLES)(known_bad)
