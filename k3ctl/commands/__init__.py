"""One file per verb: parse, call the core, return a CommandResult."""

VERBS = (
    "doctor",
    "plan",
    "profiles",
    "serve",
    "verify",
    "canary",
    "validate",
    "bench",
    "monitor",
    "triage",
    "bundle",
    "gate",
    "runs",
    "prune",
    "demo",
)
"""Order of the commands in ``k3ctl --help``."""
