"""What NCCL reports about itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from k3ctl.triage.detectors import Detector, Sighting, Story
from k3ctl.triage.records import Record

MAX_TEXTS = 64


class Nccl(Detector):
    """NCCL's own report: multi-node NVLink on or off, and an init that never completes."""

    MARKS = ("NVLS tuning", "Init COMPLETE", "MNNVL ")
    _COMM = re.compile(
        r"rank \d{1,6} nRanks (?P<ranks>\d{1,6}) nNodes (?P<nodes>\d{1,6}).{0,200}?MNNVL (?P<on>[01])(?: cliqueSize "
        r"(?P<clique>\d{1,6}))?"
    )

    def __init__(self) -> None:
        self._tuning: dict[str, Record] = {}
        self._complete: set[str] = set()
        self._last: Record | None = None
        self._off: list[Record] = []
        self._on: list[Record] = []
        self._values: dict[str, str] = {}

    def see(self, record: Record) -> None:
        """Take in one record."""
        self._last = record
        if "NVLS tuning" in record.text:
            self._tuning.setdefault(record.who, record)
        elif "Init COMPLETE" in record.text:
            self._complete.add(record.who)
        elif "MNNVL " in record.text and (comm := self._COMM.search(record.text)) and int(comm["nodes"]) > 1:
            (self._on if comm["on"] == "1" else self._off).append(record)
            self._values = {name: comm[name] or "?" for name in ("ranks", "nodes", "clique")}

    def sightings(self, _story: Story) -> Iterator[Sighting]:
        """What NCCL said last."""
        stuck = [record for who, record in self._tuning.items() if who not in self._complete]
        if stuck and self._last is not None and "NVLS tuning" in self._last.text:
            yield Sighting("nvls-hang", stuck[0], self._last, len(stuck), {}, tuple(r.who for r in stuck))
        for rule, seen in (("mnnvl-off", self._off), ("mnnvl-on", [] if self._off else self._on)):
            if seen:
                yield Sighting(rule, seen[0], seen[-1], len(seen), self._values, tuple(r.who for r in seen))


class NcclWarnings(Detector):
    """NCCL WARN lines: the cause of a later NCCL error, or a remark when nothing failed."""

    MARKS = ("NCCL WARN",)

    def __init__(self) -> None:
        self._seen: dict[str, list[Record]] = {}

    def see(self, record: Record) -> None:
        """Keep the first of each text."""
        # only NCCL's own lines carry host:pid and a rank together with a level
        if record.level == "WARNING" and ":" in record.who and len(self._seen) < MAX_TEXTS:
            self._seen.setdefault(re.sub(r"\d", "#", record.text), []).append(record)

    def sightings(self, story: Story) -> Iterator[Sighting]:
        """The first text, when no rule knows it."""
        if not self._seen:
            return
        records = next(iter(self._seen.values()))
        rule = "nccl-warning" if "nccl-error" in story.fired else "nccl-remark"
        values = {"text": records[0].text.strip()[:200]}
        yield Sighting(rule, records[0], records[-1], len(records), values, tuple(r.who for r in records))
