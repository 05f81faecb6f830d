"""What no single line shows. A detector sees every record and, at the end, names rules with their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from k3ctl.triage.facts import Facts
from k3ctl.triage.records import Record


@dataclass(frozen=True)
class Sighting:
    """A rule that a detector fires: where it began, and the values for its texts."""

    rule: str
    first: Record
    last: Record
    count: int
    values: Mapping[str, str]
    who: tuple[str, ...] = ()


@dataclass(frozen=True)
class Story:
    """What is known at the end of the log: its facts, and the rules that patterns fired."""

    facts: Facts
    fired: Set[str]


class Detector:
    """One thing to look for over a whole log. ``MARKS``: texts of which one stands in every line that it needs."""

    MARKS: tuple[str, ...] = ()

    def see(self, record: Record) -> None:
        """Take in one record."""
        raise NotImplementedError

    def sightings(self, story: Story) -> Iterator[Sighting]:  # noqa: ARG002 (of the interface)
        """What was seen, after the last record."""
        return iter(())

    def details(self) -> Mapping[str, Mapping[str, str]]:
        """Values for rules that patterns fire: rule id → name → text."""
        return {}


def all_detectors() -> tuple[Detector, ...]:
    """A fresh set for one log."""
    from k3ctl.triage.detectors.collectives import Collectives
    from k3ctl.triage.detectors.decode import DecodePath, Iterations
    from k3ctl.triage.detectors.kernel import Kernel
    from k3ctl.triage.detectors.memory import MemoryHolder
    from k3ctl.triage.detectors.nccl import Nccl, NcclWarnings
    from k3ctl.triage.detectors.progress import Stall, Waiting

    return (
        Waiting(),
        Stall(),
        Nccl(),
        NcclWarnings(),
        Collectives(),
        Kernel(),
        DecodePath(),
        Iterations(),
        MemoryHolder(),
    )
