"""Slow, hung or stalled: do counters and tokens move?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from k3ctl.signals import stalled
from k3ctl.triage.detectors import Detector, Sighting, Story
from k3ctl.triage.records import Record

HUNG_WARNINGS = 5
"""vLLM warns once a minute: this many in a row without anything else are a hang, not a long step."""


class Waiting(Detector):
    """Slow or hung: do the k/n counters move while vLLM warns that a process is busy?"""

    _WARNING = "No available shared memory broadcast block found"
    # from its end to its beginning: what is counted is all that stands before the percentage
    _COUNTER = re.compile(
        r"(?<!\d)\d{1,3}%[^|]{0,200}\|(?:[^|]{0,200}\|)?\s{0,8}(?P<done>\d{1,9})/(?P<total>\d{1,9})\b"
    )
    _BAR = re.compile(r"\[(?P<spent>[\d:]{1,12})<(?P<left>[\d:]{1,12})")

    MARKS = (_WARNING, "%|", "Completed |")

    def __init__(self) -> None:
        self._first_warning: Record | None = None
        self._last_warning: Record | None = None
        self._warnings = 0
        self._in_a_row = 0
        self._row_start: Record | None = None
        self._counter: tuple[str, int, int, int] | None = None
        self._moved: Record | None = None
        self._spent = self._left = 0.0

    def see(self, record: Record) -> None:
        """Count warnings and moves of the present counter."""
        if self._WARNING in record.text:
            self._first_warning = self._first_warning or record
            self._last_warning = record
            self._warnings += 1
            if not self._in_a_row:
                self._row_start = record
            self._in_a_row += 1
        elif "%" in record.text and (counted := self._COUNTER.search(record.text)):
            self._count(counted, record)
        elif record.stamp and "throughput" not in record.text:
            self._in_a_row = 0

    def _count(self, counted: re.Match[str], record: Record) -> None:
        before = re.split(r"[|%]", record.text[: counted.start()])[-1].rstrip(": ")
        what = re.sub(r"^\[\w{1,40}\]:?\s{0,8}", "", before[-200:]).strip()
        done, total = int(counted["done"]), int(counted["total"])
        if bar := self._BAR.search(record.text):
            self._spent, self._left = _clock(bar["spent"]), _clock(bar["left"])
        old = self._counter
        if old is None or old[0] != what or old[3] != total:
            self._counter, self._moved, self._in_a_row = (what, done, done, total), None, 0
        elif done > old[2]:
            self._counter, self._moved, self._in_a_row = (what, old[1], done, total), record, 0

    def sightings(self, _story: Story) -> Iterator[Sighting]:
        """One of slow-not-hung, hung, waiting; none when the warnings were followed by other work."""
        first, last = self._first_warning, self._last_warning
        if first is None or last is None:
            return
        if self._counter and self._moved and self._moved.line > first.line:
            what, start, done, total = self._counter
            left = f"{max(1, round(self._left / 60))} minutes"
            values = {"what": what, "first": str(start), "last": str(done), "total": str(total), "left": left}
            yield Sighting("slow-not-hung", first, last, self._warnings, values)
        elif self._in_a_row >= HUNG_WARNINGS:
            assert self._row_start is not None
            minutes = round(((last.seconds or 0) - (self._row_start.seconds or 0)) / 60)
            values = {"count": str(self._in_a_row), "minutes": str(minutes)}
            yield Sighting("hung", self._row_start, last, self._in_a_row, values)
        elif self._in_a_row:
            yield Sighting("waiting", first, last, self._warnings, {"count": str(self._in_a_row)})

    def details(self) -> Mapping[str, Mapping[str, str]]:
        """How far loading came, and how long it would have taken."""
        if self._counter is None:
            return {"ready-timeout": {"done": "?", "total": "?", "needed": "3600"}}
        whole = (self._spent + self._left) * 1.2
        needed = str(int(-(-whole // 100) * 100)) if whole else "3600"
        _, _, done, total = self._counter
        return {"ready-timeout": {"done": str(done), "total": str(total), "needed": needed}}


class Stall(Detector):
    """Requests run, and no token comes."""

    _STATS = re.compile(
        r"Avg generation throughput: (?P<rate>[\d.]{1,20}) tokens/s, Running: (?P<running>\d{1,9}) reqs"
    )

    MARKS = ("throughput",)

    def __init__(self) -> None:
        self._start: Record | None = None
        self._worst: tuple[float, Record, Record, int, str] | None = None
        self._lines = 0

    def see(self, record: Record) -> None:
        """Follow the periodic statistics."""
        stats = self._STATS.search(record.text) if "throughput" in record.text else None
        if stats is None:
            return
        if float(stats["rate"]) > 0 or int(stats["running"]) == 0:
            self._start, self._lines = None, 0
            return
        self._start = self._start or record
        self._lines += 1
        lasted = (record.seconds or 0.0) - (self._start.seconds or 0.0)
        if self._worst is None or lasted >= self._worst[0]:
            self._worst = (lasted, self._start, record, self._lines, stats["running"])

    def sightings(self, _story: Story) -> Iterator[Sighting]:
        """The longest stall, when it was long enough."""
        if self._worst is not None and stalled(float(self._worst[4]), self._worst[0]):
            lasted, first, last, lines, running = self._worst
            yield Sighting("stalled", first, last, lines, {"running": running, "seconds": f"{lasted:.0f}"})


def _clock(text: str) -> float:
    """Seconds of ``08:22`` or ``1:08:22``."""
    seconds = 0
    for part in text.split(":"):
        seconds = seconds * 60 + int(part or 0)
    return float(seconds)
