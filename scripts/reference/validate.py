"""The reference page of validation: every check, every fault that a server can be given, and how the two meet."""

from __future__ import annotations

from k3ctl.knownbad.modes import MODES, Mode
from k3ctl.validate.tiers import TIERS

HEAD = """\
# What `k3ctl validate` checks, and what shows that it can fail

Rules of the tiers `quality` and `ab`: [two sides, and scores](validate-sides-and-scores.md).
`k3ctl validate --list` prints the checks, `k3ctl known-bad` the faults.

A check passes only when its decode steps took the path that the server claims; the witness counts them meanwhile. Else
it is *void*. Where the counters cannot be believed it is *unknown*. A failure stays a failure.

## Checks

Seconds are estimates for the CPU demo on two idle cores; 0: it needs a longer context than the demo has.
"""
FAULTS = """\

## Known-bad servers

`k3ctl known-bad FAULT` puts a proxy with that fault before a sound server, on loopback. `k3ctl known-bad --try` runs
the checks that must see the faults: a sound server first, through the same proxy, then each fault. A fault that its
check does not see is *missed*; a check that fails although the fault is not of its kind is named. Both exit 1.

| fault | what is wrong | like | seen by | may fail too |
|---|---|---|---|---|
"""


def page() -> str:
    """The page."""
    return HEAD + "".join(_tier(name) for name in TIERS) + FAULTS + _faults()


def _tier(name: str) -> str:
    rows = (f"| `{check.name}` | {check.shows} | {check.seconds:.0f} |\n" for check in TIERS[name])
    return f"\n### {name}\n\n| check | a pass shows | s |\n|---|---|---|\n" + "".join(rows)


def _faults() -> str:
    return "".join(_fault(mode) for mode in MODES.values())


def _fault(mode: Mode) -> str:
    also = ", ".join(f"`{name}`" for name in sorted(mode.also)) or "–"
    check = f"`{mode.check}`" + (", which is void" if mode.void else "")
    return f"| `{mode.name}` | {mode.told} | {mode.like} | {check} | {also} |\n"
