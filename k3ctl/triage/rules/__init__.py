"""What is known about failures. Data: a rule has no code of its own.

Every rule names where its knowledge comes from and when it has to be looked at again: knowledge outlives the
faults that it is about. An expired rule still speaks, and says that it is old.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Literal

Severity = Literal["error", "warning", "info"]
Role = Literal["root", "cause", "stop", "symptom", "report"]
"""What an incident can be in the story of a failure.

root     outside the engine and before everything in it: hardware, the kernel's out-of-memory killer
cause    explains itself
stop     somebody outside ended the engine; what comes after it follows from it
symptom  a process noticed that another one failed; the cause wins, also when it is logged a little later
report   says only that something else failed; never the first cause while there is any other
"""


@dataclass(frozen=True)
class TriageRule:
    """One known incident. ``{names}`` in the texts are filled from the patterns' named groups."""

    id: str
    title: str
    cause: str
    action: str
    """The one next thing to do."""
    source: str
    """Public thread, document or source file that the rule rests on."""
    checked: date
    """When a person last looked at the source."""
    expires: date
    patterns: tuple[str, ...] = ()
    """Regular expressions over a record's text; none for a rule that a detector or another rule's ``instead`` fires."""
    within: str = ""
    """Regular expression that an earlier line of the same traceback must match."""
    severity: Severity = "error"
    vllm: str = ""
    """Versions it applies to (PEP 440); empty for all."""
    leads_to: tuple[str, ...] = ()
    """Ids of rules whose incidents are consequences of this one."""
    role: Role = "cause"
    slack_s: float = 0.0
    """For a symptom: how long after it the cause may still be logged."""
    instead: tuple[tuple[tuple[str, ...], str], ...] = ()
    """(conditions, rule id): the first whose conditions the log fulfils speaks in place of this rule."""
    unlike: str = ""
    """What tells it from the kinds that look alike."""

    def expired(self, today: date) -> bool:
        """Whether the rule is older than it was meant to become."""
        return today > self.expires


def all_rules() -> tuple[TriageRule, ...]:
    """Every rule; earlier ones win over later ones on the same line."""
    from k3ctl.triage.rules import (
        decode,
        fabric,
        kernel,
        limits,
        loading,
        machine,
        memory,
        nodes,
        running,
        startup,
        stopping,
        toolchain,
        transfer,
    )

    modules = (
        kernel,
        stopping,
        transfer,
        decode,
        toolchain,
        loading,
        limits,
        startup,
        memory,
        machine,
        fabric,
        nodes,
        running,
    )
    return tuple(rule for module in modules for rule in module.RULES)
