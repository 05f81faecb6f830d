"""Findings and the rules that make them. A rule is data (id, severity, sources, …) around one small check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

from k3ctl.checks.products import ALL_KINDS
from k3ctl.facts.products import Kind

if TYPE_CHECKING:
    pass


class Severity(IntEnum):
    """How bad a finding is; only ``FAIL`` makes ``k3ctl doctor`` exit with 1."""

    OK = 0
    INFO = 1
    UNKNOWN = 2
    """Something that a verdict rests on was not read: neither good nor bad news."""
    WARN = 3
    FAIL = 4


class Area(Enum):
    """What part of a deployment a rule is about; a profile needs some of them and not others."""

    DRIVER = "driver"
    GPU = "gpu"
    NVLINK = "nvlink"
    MULTICAST = "multicast"
    MULTI_NODE = "multi-node"
    HOST = "host"
    STORAGE = "storage"
    ENGINE = "engine"
    REPORT = "report"
    PROFILE = "profile"


@dataclass(frozen=True)
class Source:
    """Where a rule comes from: a public link, and the date of the statement or, for a living page, of looking."""

    url: str
    date: str
    note: str = ""


@dataclass(frozen=True)
class Applies:
    """The versions a rule holds for: ``minimum <= version < below``; an unknown version counts as inside."""

    subject: str = "any version"
    minimum: str = ""
    below: str = ""

    def __str__(self) -> str:
        bounds = [f"≥ {self.minimum}"] * bool(self.minimum) + [f"< {self.below}"] * bool(self.below)
        return " ".join([self.subject, " and ".join(bounds)]).strip()

    def holds(self, version: str | None) -> bool:
        """Whether ``version`` (dotted numbers) lies inside."""
        if not version or not (self.minimum or self.below):
            return True
        number = version_key(version)
        return (not self.minimum or number >= version_key(self.minimum)) and (
            not self.below or number < version_key(self.below)
        )


ANY_VERSION = Applies()


def version_key(version: str) -> tuple[int, ...]:
    """Dotted numbers as a tuple; a part that is no number ends it (``0.33.0+cpu`` → (0, 33, 0))."""
    out = []
    for part in version.split("+", maxsplit=1)[0].split("."):
        digits = "".join(c for c in part if c.isdigit())
        if not digits:
            break
        out.append(int(digits))
    return tuple(out)


@dataclass(frozen=True)
class Hit:
    """One place where a rule applies: what was read, and overrides where they depend on it."""

    evidence: str
    where: str = ""
    severity: Severity | None = None
    blocks: str | None = None
    remedy: str | None = None


@dataclass(frozen=True)
class Finding:
    """What a person acts on. ``node`` is empty for a finding about the whole group."""

    id: str
    severity: Severity
    area: Area
    title: str
    evidence: str
    where: str = ""
    node: str = ""
    blocks: str = ""
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON data; the severity and the area by name."""
        return {
            "id": self.id,
            "severity": self.severity.name.lower(),
            "area": self.area.value,
            "title": self.title,
            "node": self.node,
            "where": self.where,
            "evidence": self.evidence,
            "blocks": self.blocks,
            "remedy": self.remedy,
        }


Check = TypeVar("Check", bound=Callable[..., Iterator[Hit]])


@dataclass(frozen=True)
class Rule:
    """A rule: metadata and the check. ``cluster`` rules see all nodes at once, the others one node."""

    id: str
    severity: Severity
    area: Area
    title: str
    blocks: str
    remedy: str
    sources: tuple[Source, ...]
    applies: Applies
    kinds: frozenset[Kind]
    cluster: bool
    check: Callable[..., Iterator[Hit]]

    def to_json(self) -> dict[str, Any]:
        """JSON data."""
        return {
            "id": self.id,
            "severity": self.severity.name.lower(),
            "area": self.area.value,
            "title": self.title,
            "blocks": self.blocks,
            "remedy": self.remedy,
            "applies": str(self.applies),
            "products": sorted(kind.value for kind in self.kinds),
            "about": "group" if self.cluster else "host",
            "sources": [{"url": s.url, "date": s.date, "note": s.note} for s in self.sources],
        }

    def finding(self, hit: Hit, node: str = "") -> Finding:
        """The finding for one hit."""
        return Finding(
            id=self.id,
            severity=self.severity if hit.severity is None else hit.severity,
            area=self.area,
            title=self.title,
            evidence=hit.evidence,
            where=hit.where,
            node=node,
            blocks=self.blocks if hit.blocks is None else hit.blocks,
            remedy=self.remedy if hit.remedy is None else hit.remedy,
        )


RULES: dict[str, Rule] = {}
"""Every rule by id, in the order of declaration."""


def rule(
    id: str,
    severity: Severity,
    area: Area,
    title: str,
    *,
    remedy: str,
    sources: tuple[Source, ...],
    blocks: str = "",
    applies: Applies = ANY_VERSION,
    kinds: frozenset[Kind] = ALL_KINDS,
    cluster: bool = False,
) -> Callable[[Check], Check]:
    """Declare a rule around a check that yields one ``Hit`` per place."""

    def declare(check: Check) -> Check:
        if id in RULES:
            raise ValueError(f"rule {id} is declared twice")
        RULES[id] = Rule(id, severity, area, title, blocks, remedy, sources, applies, kinds, cluster, check)
        return check

    return declare
