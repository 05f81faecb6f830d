"""A stream of log lines → incidents: grouped over ranks, consequences under their cause.

A log is read in blocks and never held: memory does not grow with its size. Lines that cannot matter are left out early;
rules are looked up by the literals that must stand in a line, and only then by their patterns.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from k3ctl.triage import start
from k3ctl.triage.derive import Seen, derived
from k3ctl.triage.detectors import Story, all_detectors
from k3ctl.triage.ending import Ending
from k3ctl.triage.facts import Facts, holds
from k3ctl.triage.patterns import compiled, cover, literals
from k3ctl.triage.reader import Reader
from k3ctl.triage.records import Record, continues, parse, raised
from k3ctl.triage.rules import TriageRule, all_rules
from k3ctl.triage.story import Incident, ordered

CONTEXT_LINES = 60
MAX_UNKNOWN = 40
MAX_EVIDENCE = 4
MAX_CAUSE_LINES = 6
MAX_WHO = 256
MAX_NOTHING = 4096
STATISTICS = "Avg prompt throughput"

_NUMBERS = re.compile(r"0x[0-9a-f]{1,16}|\d{1,20}")
_NOT_PLAIN = re.compile(r"^(?:\[shutdown\]|\s|\||WorkerProc|Traceback|During|The above|\^|~|=+$|-+$)")
_ALWAYS = (
    "rror",
    "xception",
    "ERROR",
    "atal",
    "ailure",
    "annot",
    "nable to",
    "refused",
    "WARN",
    "FAIL",
    "ailed",
    "SIG",
    "ignal",
    "hutdown",
    "Killed",
    "imed out",
    "timeout",
    "[k3ctl]",
    "OOM",
    "oom",
)
"""Texts that make an INFO line worth a look whatever the rules are."""


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
    whole: bool = True
    """Whether nothing more will come."""

    @property
    def first_cause(self) -> Incident | None:
        """The incident to act on; None for a log without one."""
        return self.incidents[0] if self.incidents and self.incidents[0].severity != "info" else None


Candidate = tuple[int, int, TriageRule, re.Pattern[str]]
"""Place of the rule, place of its pattern, both."""


class RuleIndex:
    """Rules by the texts that must stand in a line; earlier rules win."""

    def __init__(self) -> None:
        self.by_id = {rule.id: rule for rule in all_rules()}
        self.withins = {rule.id: compiled(rule.within) for rule in all_rules() if rule.within}
        candidates: dict[str, list[Candidate]] = {}
        for at, rule in enumerate(all_rules()):
            for turn, pattern in enumerate(rule.patterns):
                for literal in literals(pattern):
                    candidates.setdefault(literal, []).append((at, turn, rule, compiled(pattern)))
        self._groups = [
            (piece, [(text, candidates[text]) for text in texts])
            for piece, texts in cover(candidates).items()
        ]

    def hits(self, text: str) -> Iterable[tuple[TriageRule, re.Match[str]]]:
        """Rules that know the line, in order."""
        found: list[Candidate] = []
        for piece, group in self._groups:
            if piece in text:
                for literal, candidates in group:
                    if literal in text:
                        found += candidates
        found.sort(key=lambda candidate: candidate[:2])
        for _, _, rule, pattern in found:
            if match := pattern.search(text):
                yield rule, match


@cache
def rule_index() -> RuleIndex:
    """Compiled once; it holds no state."""
    return RuleIndex()


class Scanner:
    """Takes records in, gives a report."""

    def __init__(self) -> None:
        self._index = rule_index()
        self._by_id = self._index.by_id
        self._detectors = all_detectors()
        self._followers = [detector for detector in self._detectors if "throughput" in detector.MARKS]
        self._incidents: dict[str, Incident] = {}
        self._context: OrderedDict[tuple[str, str], deque[str]] = OrderedDict()
        self._below: dict[tuple[str, str], tuple[Incident, int]] = {}
        self._unknowns: Counter[str] = Counter()
        self._nothing: set[str] = set()
        self._ending = Ending()
        self.facts = Facts()

    def feed(self, record: Record) -> None:
        """Take in one record."""
        if self.facts.served is not None and STATISTICS in record.text:
            # the most frequent line of a server: nothing in it is for a rule
            for detector in self._followers:
                detector.see(record)
            return
        self.facts.see(record)
        self._ending.see(record, self.facts)
        for detector in self._detectors:
            detector.see(record)
        key = (record.file, record.who or record.source)
        incident = self._match(record, key)
        self._continue(record, key, incident)
        if record.bad or continues(record.text):
            self._remember(record, key)

    def report(
        self, files: tuple[str, ...] = (), lines: int = 0, size_bytes: int = 0, whole: bool = True
    ) -> Report:
        """What was seen; ``whole``: nothing more will come, so its end counts."""
        self._sight()
        incidents = [self._resolved(incident) for incident in self._incidents.values()]
        if any(i.severity == "error" and i.rule.role == "cause" for i in incidents):
            incidents = [i for i in incidents if i.rule.id != "mnnvl-on"]
        if whole:
            self._end(incidents, lines)
        for incident in incidents:
            self._derive(incident)
        told = ordered(incidents)
        served = self.facts.served
        had_served = served is not None and (not told or _before(served, told[0].first))
        return Report(files, lines, size_bytes, self.facts.vllm, had_served, tuple(told), whole)

    def _sight(self) -> None:
        story = Story(self.facts, set(self._incidents))
        for detector in self._detectors:
            for sighting in detector.sightings(story):
                incident = self._incident(sighting.rule, self._by_id[sighting.rule], sighting.first)
                incident.last, incident.count = sighting.last, sighting.count
                incident.who |= set(sighting.who)
                incident.values.update(sighting.values)
                if not incident.evidence:
                    incident.evidence.append(sighting.first.text.strip()[:400])
        if (off := self.facts.pynccl_off) is not None:
            self._note("pynccl-off", self._by_id["pynccl-off"], off)
        for detector in self._detectors:
            for rule_id, values in detector.details().items():
                if rule_id in self._incidents:
                    self._incidents[rule_id].values.update(values)

    def _end(self, incidents: list[Incident], lines: int) -> None:
        observed = ("slow-not-hung", "stopped-in-order", "mnnvl-on", "mnnvl-none")
        told = any(i.severity != "info" or i.rule.id in observed for i in incidents)
        end = self._ending.end(self.facts, told, lines)
        if end is not None:
            rule = self._by_id[end.rule]
            incidents.append(Incident(rule, end.first, end.first, 1, values=dict(end.values)))

    def _match(self, record: Record, key: tuple[str, str]) -> Incident | None:
        """The first rule that knows the line, else an error that none knows."""
        text = record.text
        plain = _NUMBERS.sub("#", text)
        for rule, found in self._hits(record, plain):
            within = self._index.withins.get(rule.id)
            if within is None or any(within.search(line) for line in self._context.get(key, ())):
                incident = self._note(rule.id, rule, record)
                if not incident.context:
                    incident.context = (*self._context.get(key, ()), text)
                for name, value in found.groupdict().items():
                    if value is not None:
                        incident.values.setdefault(name, value)
                return incident
        if not record.bad or record.who == "kernel":
            return None
        if raised(text.strip()):
            return self._unknown(record, key, f"unknown-error {plain}")
        # right below an exception it is a part of its message
        if key not in self._below and not _NOT_PLAIN.match(text):
            return self._unknown(record, key, f"unknown-report {plain}")
        return None

    def _hits(self, record: Record, plain: str) -> Iterable[tuple[TriageRule, re.Match[str]]]:
        """Rules that know the line; progress that none knew is not looked up again with other numbers."""
        if plain in self._nothing:
            return ()
        found = list(self._index.hits(record.text))
        if not found and "%" in plain and not record.bad and len(self._nothing) < MAX_NOTHING:
            self._nothing.add(plain)
        return found

    def _unknown(self, record: Record, key: tuple[str, str], name: str) -> Incident | None:
        rule = name.partition(" ")[0]
        if name in self._incidents:
            return self._note(name, self._by_id[rule], record)
        if self._unknowns[rule] >= MAX_UNKNOWN:
            return None
        self._unknowns[rule] += 1
        incident = self._note(name, self._by_id[rule], record)
        incident.context = tuple(self._context.get(key, ()))
        incident.values["exception"] = record.text.strip()[:300]
        return incident

    def _continue(self, record: Record, key: tuple[str, str], incident: Incident | None) -> None:
        """The lines below an exception belong to its message: the field that is wrong, the compiler's words."""
        if incident is not None and incident.unknown and incident.count == 1:
            self._below[key] = (incident, MAX_CAUSE_LINES)
            if len(self._below) > MAX_WHO:
                self._below.pop(next(iter(self._below)))
            return
        above, left = self._below.get(key, (None, 0))
        if above is None or incident is not None:
            return
        own = record.level in ("", "ERROR", "CRITICAL") and not raised(record.text.strip())
        if left and own and not record.text.startswith(("Traceback", "During handling", "The above")):
            above.evidence.append("  " + record.text.strip()[:300])
            self._below[key] = (above, left - 1)
        else:
            self._below.pop(key, None)

    def _note(self, key: str, rule: TriageRule, record: Record) -> Incident:
        incident = self._incident(key, rule, record)
        incident.last = record
        incident.count += record.repeats
        text = record.text.strip()[:400]
        if text not in incident.evidence and len(incident.evidence) < MAX_EVIDENCE:
            incident.evidence.append(text)
        return incident

    def _incident(self, key: str, rule: TriageRule, record: Record) -> Incident:
        incident = self._incidents.setdefault(key, Incident(rule, record, record))
        if len(incident.who) < MAX_WHO:
            if record.who or record.source:
                incident.who.add(record.who or record.source)
            if record.rank is not None:
                incident.ranks.add(record.rank)
        return incident

    def _remember(self, record: Record, key: tuple[str, str]) -> None:
        """Keep the last lines of each process's traceback."""
        lines = self._context.setdefault(key, deque(maxlen=CONTEXT_LINES))
        lines.append(record.text)
        if len(self._context) > MAX_WHO:
            self._context.popitem(last=False)

    def _resolved(self, incident: Incident) -> Incident:
        """The rule that this log's facts leave: another one, or none for a version that it is not about."""
        rule = incident.rule
        for conditions, other in rule.instead:
            if holds(conditions, self.facts, incident.first):
                rule = self._by_id[other]
                break
        if rule.vllm and not _applies(rule.vllm, self.facts.vllm):
            text = incident.evidence[0] if incident.evidence else rule.title
            return replace(incident, rule=self._by_id["unknown-error"], values={"exception": text})
        return replace(incident, rule=rule)

    def _derive(self, incident: Incident) -> None:
        if incident.unknown:
            _show_cause(incident)
            return
        seen = Seen(incident.values, self.facts, incident.context, incident.first.stamp)
        incident.values.update(derived(incident.rule.id, seen))


def _before(one: Record, other: Record) -> bool:
    """Whether ``one`` came first; files are told apart by their times."""
    if one.file == other.file or one.seconds is None or other.seconds is None:
        return one.order < other.order
    return one.seconds < other.seconds


def scan(paths: Iterable[Path], *, one_log: bool = False, whole: bool = True) -> Report:
    """Read logs (one per node) and report.

    Args:
        paths: log files; line numbers count within each.
        one_log: they are the parts of one log, oldest first.
        whole: the logs are all that there will be; False while the engine still writes.

    Raises:
        OSError: a file cannot be read.
    """
    scanner = Scanner()
    names, lines, size = [], 0, 0
    seconds: float | None = None
    for path in paths:
        names.append(str(path))
        with path.open("rb") as file:
            reader = Reader(file, marks())
            seconds = seconds if one_log else None
            for number, text in reader.marked():
                if record := parse(text, number, str(path), lines + number, seconds):
                    if record.timed:
                        seconds = record.seconds
                    scanner.feed(record)
            lines += reader.lines
            size += reader.size_bytes
    return scanner.report(tuple(names), lines, size, whole)


def scan_lines(text: Iterable[str], *, whole: bool = False) -> Report:
    """Report on lines that are already in memory."""
    scanner = Scanner()
    number = 0
    for number, line in enumerate(text, 1):
        if record := parse(line, number):
            scanner.feed(record)
    return scanner.report((), number, whole=whole)


def marks() -> tuple[str, ...]:
    """Texts of which one stands in every INFO line that a rule, a detector or a fact looks for."""
    wanted = [*Facts.MARKS, *_ALWAYS, *start.MARKS]
    for detector in all_detectors():
        wanted += detector.MARKS
    return tuple(dict.fromkeys(wanted))


def expired(report: Report, today: date) -> list[TriageRule]:
    """Rules behind the report's incidents that have to be looked at again."""
    return [incident.rule for incident in report.incidents if incident.rule.expired(today)]


_BARE = re.compile(
    r"^[\w.]{1,200}(?:Error|Exception)"
    r"(?:: ?(?:\d{1,4} validation errors? for .{0,80}|.{0,40}failed\b.{0,120})?)?$"
)


def _show_cause(incident: Incident) -> None:
    """An exception whose own line says little gets the one that does: a source line, a field, a compiler's words."""
    exception = incident.values.get("exception", "")
    source = [
        line.strip()
        for line in incident.context
        if line[:1].isspace() and not line.lstrip().startswith(("File ", "^", "~"))
    ]
    if source and source[-1] not in exception:
        incident.evidence.insert(0, "  " + source[-1][:300])
    if not _BARE.match(exception):
        return
    below = [line.strip() for line in incident.evidence if line.startswith("  ")]
    telling = next(
        (line for line in below if re.search(r"fatal|error|Value error|assert|\[type=", line)), None
    )
    if exception.startswith(("AssertionError", "ValueError", "RuntimeError")) and telling is None and source:
        telling = source[-1]
    if telling and telling not in exception:
        incident.values["exception"] = f"{exception.rstrip(': ')}: {telling}"[:300]


def _applies(specifier: str, version: str) -> bool:
    """Whether a rule for ``specifier`` may speak about ``version``; of an unknown version it may."""
    try:
        return not version or SpecifierSet(specifier, prereleases=True).contains(Version(version))
    except InvalidVersion:
        return True
