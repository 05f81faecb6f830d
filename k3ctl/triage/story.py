"""Which incident is the first cause, and what follows from it. Pure, over all files and ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from k3ctl.triage.records import Record
from k3ctl.triage.rules import Severity, TriageRule

KNOWN_SLACK_S = 10.0
"""An error that a rule explains wins over an unexplained one that was logged this little earlier: ranks race."""
UNKNOWN_SLACK_S = 2.0
"""Within this time the error of the innermost process is taken, whoever printed first."""
STOP_SPAN_S = 600.0
"""Errors this long after a stop from outside follow from it."""
_DEPTHS = ("Worker", "EngineCore", "APIServer")


@dataclass
class Incident:
    """One thing that happened, however many ranks and lines report it."""

    rule: TriageRule
    first: Record
    last: Record
    count: int = 0
    who: set[str] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    evidence: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    context: tuple[str, ...] = ()
    """The traceback around its first line."""
    because: str = ""
    """Id of the incident that this one follows from."""

    @property
    def title(self) -> str:
        """The rule's title, filled in."""
        return _fill(self.rule.title, self.values)

    @property
    def cause(self) -> str:
        """The rule's cause, filled in."""
        return _fill(self.rule.cause, self.values)

    @property
    def action(self) -> str:
        """The one next action, filled in."""
        return _fill(self.rule.action, self.values)

    @property
    def severity(self) -> Severity:
        """The rule's severity."""
        return self.rule.severity

    @property
    def unknown(self) -> bool:
        """Whether no rule knows it."""
        return self.rule.id in ("unknown-error", "unknown-report")


def ordered(incidents: Iterable[Incident]) -> list[Incident]:
    """The first cause, what follows from it, then everything else."""
    by_time = sorted(incidents, key=_position)
    first = first_cause(by_time)
    if first is not None:
        _follow(by_time, first)
    rank = {"error": 0, "warning": 1, "info": 2}
    return sorted(by_time, key=lambda i: (i is not first, not i.because, rank[i.severity], _position(i)))


def first_cause(by_time: list[Incident]) -> Incident | None:
    """The incident to act on; None without errors and warnings."""
    errors = [i for i in by_time if i.severity == "error"]
    stops = [i for i in by_time if i.rule.role == "stop" and i.severity != "info"]
    pick = _root(errors) or _stopped(stops, errors) or _cause(errors)
    if pick is not None:
        return pick
    warnings = [i for i in by_time if i.severity == "warning"]
    return next((i for i in warnings if i.rule.role == "cause"), None) or next(iter(warnings), None)


def _root(errors: list[Incident]) -> Incident | None:
    """Hardware, or the kernel's killer: outside of everything that the engine can say."""
    roots = [i for i in errors if i.rule.role == "root"]
    return next((i for i in roots if not _led(i, roots)), None)


def _stopped(stops: list[Incident], errors: list[Incident]) -> Incident | None:
    """A stop from outside, unless something had failed before it: then it only cleared away."""
    if not stops:
        return None
    # the launcher's word names who sent the signal, and often stands below what the signal did
    first = next(
        (i for i in stops if i.rule.id not in ("stopped-outside", "stopped-while-starting")), stops[0]
    )
    began = min(stops, key=_position)
    before = [i for i in errors if i.rule.role in ("cause", "symptom") and _position(i) < _position(began)]
    return None if before else first


def _cause(errors: list[Incident]) -> Incident | None:
    known = next(
        (i for i in errors if i.rule.role == "cause" and not i.unknown and not _led(i, errors)), None
    )
    unknown = _deepest([i for i in errors if i.rule.id == "unknown-error"])
    symptom = next((i for i in errors if i.rule.role == "symptom" and not _led(i, errors)), None)
    cause = _earlier(known, unknown, KNOWN_SLACK_S)
    in_time = cause is not None and (symptom is None or _after(symptom, cause) <= symptom.rule.slack_s)
    best = cause if in_time else symptom
    return best or next((i for i in errors if i.rule.role not in ("stop", "info")), None)


def _deepest(unknown: list[Incident]) -> Incident | None:
    """The first; of those in the same breath, the innermost process's."""
    if not unknown:
        return None
    close = [i for i in unknown if _gap(unknown[0], i) <= UNKNOWN_SLACK_S]
    return min(close, key=lambda i: (_depth(i), _position(i)))


def _earlier(known: Incident | None, unknown: Incident | None, slack_s: float) -> Incident | None:
    if known is None or unknown is None:
        return known or unknown
    if _position(known) <= _position(unknown) or _gap(unknown, known) <= slack_s:
        return known
    return unknown


def _after(symptom: Incident, cause: Incident) -> float:
    """How long after the symptom's last line the cause began; 0 when it began before its end."""
    if _position(cause) <= _position(symptom):
        return 0.0
    if cause.first.seconds is None or symptom.last.seconds is None:
        return 0.0
    return max(0.0, cause.first.seconds - symptom.last.seconds)


def _gap(one: Incident, other: Incident) -> float:
    if one.first.seconds is None or other.first.seconds is None:
        return 0.0
    return abs(one.first.seconds - other.first.seconds)


def _led(incident: Incident, others: Iterable[Incident]) -> bool:
    return any(incident.rule.id in other.rule.leads_to for other in others if other is not incident)


def _follow(by_time: list[Incident], first: Incident) -> None:
    """Say of every incident which one it follows from."""
    for incident in by_time:
        if incident is first:
            continue
        leader = next(
            (i for i in (first, *by_time) if i is not incident and incident.rule.id in i.rule.leads_to), None
        )
        if leader is not None and not (leader.because and leader.because == incident.rule.id):
            incident.because = leader.rule.id
        elif _consequence(incident, first):
            incident.because = first.rule.id


def _consequence(incident: Incident, first: Incident) -> bool:
    role = incident.rule.role
    if incident.severity == "info":
        return False
    if role == "report" or (first.rule.role == "root" and role == "symptom"):
        return True
    later = _position(incident) >= _position(first)
    if first.rule.role == "stop":
        return role == "stop" or (later and _gap(first, incident) <= STOP_SPAN_S)
    if role == "stop":
        return later
    if role == "symptom":
        return later or _after(incident, first) <= incident.rule.slack_s
    # "WorkerProc failed to start" comes before the exception that it reports
    return incident.unknown and (later or _gap(first, incident) <= KNOWN_SLACK_S)


def _depth(incident: Incident) -> int:
    names = incident.who or {""}
    return min(
        next(
            (depth for depth, prefix in enumerate(_DEPTHS) if prefix in name),
            0 if name.startswith("rank") else len(_DEPTHS),
        )
        for name in names
    )


def _position(incident: Incident) -> tuple[float, int]:
    return (incident.first.seconds or 0.0, incident.first.order)


class _Values(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return "?"


def _fill(text: str, values: dict[str, str]) -> str:
    return text.format_map(_Values(values))
