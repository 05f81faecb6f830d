"""One file per verb: parse, call the core, return a CommandResult."""

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
