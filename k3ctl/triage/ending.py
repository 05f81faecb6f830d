"""How a log ends: served, still starting, a worker node's, or none of an engine at all. No silence is an all-clear."""

from __future__ import annotations

from dataclasses import dataclass

from k3ctl.triage.facts import Facts
from k3ctl.triage.records import Record
from k3ctl.triage.start import ORDER, TITLES, stage_of

BEGINNING = 32
MAX_TOLD = 4096


@dataclass(frozen=True)
class End:
    """A rule about the end of the log, where it stands, and its values."""

    rule: str
    first: Record
    values: dict[str, str]


class Ending:
    """Follows the stages of the start until the server is ready."""

    def __init__(self) -> None:
        self._stage: Record | None = None
        self._name = ""
        self._last: Record | None = None
        self._headless = False
        self._of_engine = False
        self._told: set[str] = set()

    def see(self, record: Record, facts: Facts) -> None:
        """Take in one record."""
        self._last = record
        if record.who.startswith("Headless") or "--headless" in record.text:
            self._headless = True
        if not self._of_engine:
            prefixed = record.pid is not None or record.who == "kernel" or ":" in record.who
            timed = bool(record.where) and record.seconds is not None
            self._of_engine = prefixed or timed or "NVML" in record.text
        if facts.served is None and (name := self._new_stage(record.text)):
            self._of_engine = True
            if not self._name or ORDER.index(name) >= ORDER.index(self._name):
                self._name, self._stage = name, record

    def _new_stage(self, text: str) -> str | None:
        """The stage of a message whose beginning was not there before: progress is told a thousand times."""
        beginning = text[:BEGINNING]
        if beginning in self._told:
            return None
        if len(self._told) < MAX_TOLD:
            self._told.add(beginning)
        return stage_of(text)

    def end(self, facts: Facts, told: bool, lines: int) -> End | None:
        """What the end says, when no incident has ``told`` why."""
        if told or facts.served is not None:
            return None
        if not self._of_engine:
            top = Record(1, "", file=self._last.file if self._last else "")
            return End("no-engine-log", top, {"lines": f"{lines:,}"})
        if self._stage is None:
            return None
        if (self._headless or (facts.number("node_rank") or 0) > 0) and ORDER.index(
            self._name
        ) >= ORDER.index("loaded"):
            return End("worker-node-only", self._stage, {})
        return End("ends-before-serving", self._last or self._stage, {"stage": TITLES[self._name]})
