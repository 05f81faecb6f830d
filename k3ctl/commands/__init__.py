"""One file per verb: parse, call the core, return a CommandResult. Here: their order, groups, and shared options."""

from typing import Annotated

import typer

from k3ctl import completion

VERBS = (
    "doctor",
    "plan",
    "profiles",
    "serve",
    "verify",
    "canary",
    "validate",
    "knownbad",
    "bench",
    "monitor",
    "triage",
    "bundle",
    "gate",
    "runs",
    "prune",
    "next",
    "demo",
)
"""Order in which the modules register their commands."""

GROUPS = {
    "First steps": ("next", "demo"),
    "Before the weights load": ("doctor", "plan", "profiles"),
    "Serve": ("serve", "ps", "logs", "stop", "prune"),
    "Prove": ("verify", "canary", "validate", "known-bad"),
    "Measure": ("bench", "bundle", "gate"),
    "Watch and diagnose": ("monitor", "triage"),
}
"""How ``k3ctl --help`` groups the commands; one that is not named here stands under `More`."""

ServerUrl = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="Server root, e.g. http://127.0.0.1:8000.")
]
RunId = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="RUN",
        help="Run id (see `k3ctl ps`). Default: the newest live run.",
        autocompletion=completion.live_runs,
    ),
]
"""Which server is meant, for the commands that look at a running one."""
