"""One report over one or several hosts: what was read, the short answer, the findings, what can run here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from k3ctl.checks.domains import Domain, domains
from k3ctl.checks.evaluate import evaluate, sort
from k3ctl.checks.finding import Finding, Severity
from k3ctl.checks.merge import Gathered
from k3ctl.checks.verdict import MachineVerdict, verdict
from k3ctl.gpus.types import Snapshot
from k3ctl.host.codec import encode
from k3ctl.host.types import Host
from k3ctl.machine.record import Machine, hosts_of, snapshot_of, to_json

SCHEMA = "k3ctl.doctor/1"


@dataclass(frozen=True)
class Runnable:
    """Whether a profile can be started on the hosts of a report; ``reasons`` say why not, or what is not known.

    ``standing`` is the preflight's answer in a word. ``hosts`` is how many hosts the profile needs when this report
    covers fewer, else 0. ``group`` and ``left_out`` are the hosts it would take, and what it leaves out because of a
    fault. ``other_hardware``: there is not one GPU of the kind it needs.
    """

    profile: str
    possible: bool
    standing: str
    reasons: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    hosts: int = 0
    other_hardware: bool = False
    group: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """A judged reading. ``notes`` are inputs that could not be used, one line each."""

    machines: tuple[Machine, ...]
    verdict: MachineVerdict
    domains: tuple[Domain, ...]
    findings: tuple[Finding, ...]
    runnable: tuple[Runnable, ...] = ()
    profile: str | None = None
    answer: Mapping[str, Any] | None = None
    """The preflight of ``profile``."""
    notes: tuple[str, ...] = field(default=())

    @property
    def snapshot(self) -> Snapshot:
        """The GPUs of all machines."""
        return snapshot_of(self.machines)

    @property
    def hosts(self) -> Mapping[str, Host]:
        """The hosts by name, where somebody looked."""
        return hosts_of(self.machines)

    @property
    def undecided(self) -> bool:
        """The profile's verdict rests on something that was not read."""
        return self.answer is not None and self.answer["standing"] == "may run"

    @property
    def failed(self) -> bool:
        """At least one finding is a failure."""
        return any(finding.severity is Severity.FAIL for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The ``data`` of ``k3ctl doctor --json``; ``k3ctl doctor merge`` reads it back."""
        return {
            "verdict": self.verdict.to_json(),
            "domains": [
                {"name": d.name, "product": d.product.id, "gpus": d.size, "hosts": list(d.hosts)}
                | {"largest_tp": d.largest_tp, "k3_tp": d.largest_k3_tp}
                for d in self.domains
            ],
            "findings": [finding.to_json() for finding in self.findings],
            "counts": {s.name.lower(): sum(f.severity is s for f in self.findings) for s in Severity},
            "profile": self.profile,
            "preflight": self.answer,
            "can_run": [encode(entry) for entry in self.runnable],
            "notes": list(self.notes),
            **to_json(self.machines),
        }


def describe(
    gathered: Gathered,
    runnable: tuple[Runnable, ...] = (),
    *,
    profile: str | None = None,
    findings: tuple[Finding, ...] | None = None,
    answer: Mapping[str, Any] | None = None,
) -> Report:
    """The report about what was read; ``findings`` are all of them, unless a ``profile`` has narrowed them."""
    snapshot, hosts = gathered.snapshot, gathered.hosts
    found = tuple(sort([*evaluate(snapshot, hosts), *gathered.findings])) if findings is None else findings
    return Report(
        machines=gathered.machines,
        verdict=verdict(snapshot, hosts),
        domains=tuple(domains(snapshot)),
        findings=found,
        runnable=runnable,
        profile=profile,
        answer=answer,
        notes=gathered.notes,
    )


@dataclass(frozen=True)
class Group:
    """One rule's findings with the same consequence and remedy. ``places`` are (where, what was read)."""

    finding: Finding
    places: tuple[tuple[str, str], ...]


def grouped(findings: Iterable[Finding], *, name_hosts: bool) -> list[Group]:
    """Findings of one rule together, equal readings joined; ``name_hosts`` puts the host before the place."""
    same: dict[tuple[Any, ...], list[Finding]] = {}
    for finding in findings:
        same.setdefault((finding.id, finding.severity, finding.blocks, finding.remedy), []).append(finding)
    return [Group(group[0], tuple(_places(group, name_hosts))) for group in same.values()]


def _places(group: Sequence[Finding], name_hosts: bool) -> Iterator[tuple[str, str]]:
    readings: dict[str, dict[str, list[str]]] = {}
    for finding in group:
        readings.setdefault(finding.evidence, {}).setdefault(finding.node, []).append(finding.where)
    for evidence, hosts in readings.items():
        parts = [
            " ".join(filter(None, [host if name_hosts else "", _join(where)]))
            for host, where in hosts.items()
        ]
        yield "; ".join(filter(None, parts)), evidence


def _join(places: Sequence[str]) -> str:
    named = [place for place in dict.fromkeys(places) if place]
    if len(named) > 2 and all(place.startswith("GPU ") for place in named):
        return "GPU " + ", ".join(place.split()[1] for place in named)
    return ", ".join(named)
