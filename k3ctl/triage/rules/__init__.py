"""What is known about failures. Data: a rule has no code of its own.

Every rule names where its knowledge comes from and when it has to be looked at again: knowledge outlives the
faults that it is about. An expired rule still speaks, and says that it is old.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Literal

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Rule:
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
    """Regular expressions over a record's text; none for a rule that a detector fires."""
    within: str = ""
    """Regular expression that an earlier line of the same traceback must match."""
    severity: Severity = "error"
    vllm: str = ""
    """Versions it applies to (PEP 440); empty for all."""
    leads_to: tuple[str, ...] = ()
    """Ids of rules whose incidents are consequences when they come later."""
    consequence: bool = False
    """Never a first cause: it only reports that something else failed."""

    def expired(self, today: date) -> bool:
        """Whether the rule is older than it was meant to become."""
        return today > self.expires


def all_rules() -> tuple[Rule, ...]:
    """Every rule; earlier ones win over later ones on the same line."""
    from k3ctl.triage.rules import decode, fabric, machine, memory, running, startup

    modules = (decode, startup, memory, machine, fabric, running)
    return tuple(rule for module in modules for rule in module.RULES)
