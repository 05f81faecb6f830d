"""A stream of log lines → incidents: grouped over ranks, consequences under their cause.

A log is read in blocks and never held: memory does not grow with its size. One regular expression finds the
lines that can matter; the others cost nothing more.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import BinaryIO

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from k3ctl.triage.detectors import all_detectors
from k3ctl.triage.records import Record, parse, raised
from k3ctl.triage.rules import Rule, Severity, all_rules

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 14
CONTEXT_LINES = 60
MAX_UNKNOWN = 40
MAX_EVIDENCE = 4

_MARK = re.compile(
    rb"rror|xception|arning|WARN|ERROR|CRITICAL|Traceback|NCCL|NVRM|VLLM::|%\||Completed \||Iteration\("
    rb"|engine \(v|non-default|startup complete|Engine 0|version |FULL |PIECEWISE|NONE |Segfault|is lost"
    rb"|shared memory|\[k3ctl\]|_model"
)
_VERSION = re.compile(r"(?:\bversion |LLM engine \(v)(\d+\.\d+[\w.+]*)")
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


@dataclass
class Incident:
    """One thing that happened, however many ranks and lines report it."""

    rule: Rule
    first: Record
    last: Record
    count: int = 0
    who: set[str] = field(default_factory=set)
    evidence: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
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


@dataclass(frozen=True)
class Report:
    """What a log says. ``incidents`` are ordered: the first cause, what follows from it, then the rest."""

    files: tuple[str, ...]
    lines: int
    size_bytes: int
    vllm: str
    served: bool
    """Whether the server had opened its port before the first incident."""
    incidents: tuple[Incident, ...]

    @property
    def first_cause(self) -> Incident | None:
        """The incident to act on; None for a log without one."""
        return self.incidents[0] if self.incidents and self.incidents[0].severity != "info" else None


class Scanner:
    """Takes records in, gives a report."""

    def __init__(self) -> None:
        self._rules = [
            (rule, [re.compile(p) for p in rule.patterns], re.compile(rule.within) if rule.within else None)
            for rule in all_rules()
            if rule.patterns
        ]
        self._by_id = {rule.id: rule for rule in all_rules()}
        self._detectors = all_detectors()
        self._incidents: dict[str, Incident] = {}
        self._context: OrderedDict[str, deque[str]] = OrderedDict()
        self._unmatched: OrderedDict[str, None] = OrderedDict()
        self._ready: Record | None = None
        self.vllm = ""

    def feed(self, record: Record) -> None:
        """Take in one record."""
        if not self.vllm and (found := _VERSION.search(record.text)):
            self.vllm = found[1].rstrip(".")
        if self._ready is None and "Application startup complete" in record.text:
            self._ready = record
        for detector in self._detectors:
            detector.see(record)
        self._match(record)
        if record.bad:
            self._remember(record)

    def report(self, files: tuple[str, ...] = (), lines: int = 0, size_bytes: int = 0) -> Report:
        """What was seen."""
        for detector in self._detectors:
            for sighting in detector.sightings():
                incident = self._incident(sighting.rule, self._by_id[sighting.rule], sighting.first)
                incident.last, incident.count = sighting.last, sighting.count
                incident.who |= set(sighting.who)
                incident.values.update(sighting.values)
            for rule_id, values in detector.details().items():
                if rule_id in self._incidents:
                    self._incidents[rule_id].values.update(values)
        ordered = _ordered(self._for_this_version())
        served = self._ready is not None and (not ordered or self._ready.line < ordered[0].first.line)
        return Report(files, lines, size_bytes, self.vllm, served, tuple(ordered))

    def _match(self, record: Record) -> None:
        """The first rule that knows the line; repeated lines are looked up once."""
        plain = _NUMBERS.sub("#", record.text)
        if plain in self._unmatched:
            self._unmatched.move_to_end(plain)
        else:
            for rule, patterns, within in self._rules:
                found = next((hit for pattern in patterns if (hit := pattern.search(record.text))), None)
                if found and (within is None or self._inside(record, within)):
                    incident = self._note(rule.id, rule, record)
                    for name, value in found.groupdict().items():
                        incident.values.setdefault(name, "?" if value is None else value)
                    return
            self._unmatched[plain] = None
            if len(self._unmatched) > 4096:
                self._unmatched.popitem(last=False)
        if record.bad and raised(record.text.strip()):
            self._unknown(record, plain)

    def _unknown(self, record: Record, plain: str) -> None:
        key = f"unknown-error {plain}"
        known = sum(1 for name in self._incidents if name.startswith("unknown-error"))
        if key in self._incidents or known < MAX_UNKNOWN:
            incident = self._note(key, self._by_id["unknown-error"], record)
            incident.values.setdefault("exception", record.text.strip()[:300])

    def _note(self, key: str, rule: Rule, record: Record) -> Incident:
        incident = self._incident(key, rule, record)
        incident.last = record
        incident.count += 1
        if record.text not in incident.evidence and len(incident.evidence) < MAX_EVIDENCE:
            incident.evidence.append(record.text.strip()[:400])
        return incident

    def _incident(self, key: str, rule: Rule, record: Record) -> Incident:
        incident = self._incidents.setdefault(key, Incident(rule, record, record))
        if record.who:
            incident.who.add(record.who)
        return incident

    def _remember(self, record: Record) -> None:
        """Keep the last lines of each process's traceback."""
        lines = self._context.setdefault(record.who, deque(maxlen=CONTEXT_LINES))
        lines.append(record.text)
        if len(self._context) > 256:
            self._context.popitem(last=False)

    def _inside(self, record: Record, within: re.Pattern[str]) -> bool:
        return any(within.search(line) for line in self._context.get(record.who, ()))

    def _for_this_version(self) -> list[Incident]:
        """A rule for another version does not explain this log: its line counts as an unknown error."""
        kept = []
        for incident in self._incidents.values():
            if incident.rule.vllm and not _applies(incident.rule.vllm, self.vllm):
                unknown = replace(incident, rule=self._by_id["unknown-error"])
                unknown.values["exception"] = (
                    incident.evidence[0] if incident.evidence else incident.rule.title
                )
                kept.append(unknown)
            else:
                kept.append(incident)
        return kept


def scan(paths: Iterable[Path], *, one_log: bool = False) -> Report:
    """Read logs (one per node) and report; ``one_log``: they are the parts of one, oldest first.

    Raises:
        OSError: a file cannot be read.
    """
    scanner = Scanner()
    names, lines, size = [], 0, 0
    seconds: float | None = None
    for path in paths:
        names.append(str(path))
        with path.open("rb") as file:
            reader = _Reader(file)
            seconds = seconds if one_log else None
            for number, text in reader.marked():
                if record := parse(text, lines + number, str(path)):
                    # NCCL and plain prints carry no time: they happened after the line before
                    seconds = record.seconds if record.seconds is not None else seconds
                    scanner.feed(record if record.seconds is not None else replace(record, seconds=seconds))
            lines += reader.lines
            size += reader.size_bytes
    return scanner.report(tuple(names), lines, size)


def scan_lines(text: Iterable[str]) -> Report:
    """Report on lines that are already in memory."""
    scanner = Scanner()
    number = 0
    for number, line in enumerate(text, 1):
        if record := parse(line, number):
            scanner.feed(record)
    return scanner.report((), number)


def expired(report: Report, today: date) -> list[Rule]:
    """Rules behind the report's incidents that have to be looked at again."""
    return [incident.rule for incident in report.incidents if incident.rule.expired(today)]


class _Reader:
    """Lines of a file that can matter, with their numbers, in bounded memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.lines = 0
        self.size_bytes = 0

    def marked(self) -> Iterator[tuple[int, str]]:
        """(line number, line) for every line that holds a mark."""
        rest = b""
        while block := self._file.read(BLOCK_BYTES):
            self.size_bytes += len(block)
            whole, newline, tail = (rest + block).rpartition(b"\n")
            # a "line" without an end is cut: no log writes megabytes in one, a binary file does
            rest = tail[:BLOCK_BYTES]
            yield from self._in_block(whole + newline)
        if rest:
            yield from self._in_block(rest + b"\n")

    def _in_block(self, data: bytes) -> Iterator[tuple[int, str]]:
        position = counted = 0
        while mark := _MARK.search(data, position):
            start = data.rfind(b"\n", 0, mark.start()) + 1
            end = data.index(b"\n", mark.end())
            self.lines += data.count(b"\n", counted, start)
            yield self.lines + 1, _text(data[start:end])
            position = counted = end + 1
            self.lines += 1
        self.lines += data.count(b"\n", counted)


def _text(line: bytes) -> str:
    """The last state of a progress bar; an overlong line is cut."""
    return line.rstrip(b"\r").rpartition(b"\r")[2][:MAX_LINE_BYTES].decode(errors="replace")


def _ordered(incidents: list[Incident]) -> list[Incident]:
    """The first cause, what follows from it, then everything else."""
    by_time = sorted(incidents, key=_position)
    for at, incident in enumerate(by_time):
        earlier = by_time[:at]
        leader = next((other for other in earlier if incident.rule.id in other.rule.leads_to), None)
        incident.because = leader.rule.id if leader else ""
    first = _first_cause(by_time)
    if first is None:
        return by_time
    for incident in by_time:
        later = incident.rule.id == "unknown-error" and _position(incident) >= _position(first)
        # "WorkerProc failed to start" comes before the exception that it reports
        if incident is not first and not incident.because and (later or incident.rule.consequence):
            incident.because = first.rule.id
    rank = {"error": 0, "warning": 1, "info": 2}
    return sorted(
        by_time,
        key=lambda i: (i is not first, not i.because, rank[i.severity], _position(i)),
    )


def _first_cause(by_time: list[Incident]) -> Incident | None:
    roots = [incident for incident in by_time if not incident.because]
    causes = [incident for incident in roots if not incident.rule.consequence]
    for group in (
        [incident for incident in causes if incident.severity == "error"],
        [incident for incident in roots if incident.severity == "error"],
        [incident for incident in causes if incident.severity == "warning"],
    ):
        if group:
            return group[0]
    return None


def _position(incident: Incident) -> tuple[float, int]:
    return (incident.first.seconds or 0.0, incident.first.line)


def _applies(specifier: str, version: str) -> bool:
    """Whether a rule for ``specifier`` may speak about ``version``; of an unknown version it may."""
    try:
        return not version or SpecifierSet(specifier, prereleases=True).contains(Version(version))
    except InvalidVersion:
        return True


class _Values(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return "?"


def _fill(text: str, values: dict[str, str]) -> str:
    return text.format_map(_Values(values))
