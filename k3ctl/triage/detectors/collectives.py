"""A collective that timed out: who reports it, and who is silent or behind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from k3ctl.triage.detectors import Detector, Sighting, Story
from k3ctl.triage.records import Record

_HANG = "dump its stacks while it hangs (`py-spy dump`); if it is gone, look for its end (`dmesg -T`, its node's log)"


class Collectives(Detector):
    """The watchdog of every rank that waited speaks; the rank that they waited for is the one that does not."""

    MARKS = ("atchdog", "NCCL work", "world_size", "world size", "nRanks", "collective timeout from rank")

    _CAUGHT = re.compile(r"Watchdog caught collective operation timeout: (?P<work>.{0,600})")
    _RANK = re.compile(r"\bRank (?P<rank>\d{1,6})\]")
    _WORK = re.compile(r"SeqNum=(?P<seq>\d{1,18}).{0,20}?OpType=(?P<op>\w{1,60})")
    _RAN = re.compile(r"ran for (?P<ms>\d{1,12}) milliseconds")
    _PROGRESS = re.compile(
        r"last enqueued(?: NCCL)? work:? (?P<seq>\d{1,18})|last completed(?: NCCL)? work:? (?P<done>\d{1,18})"
    )
    _WORLD = re.compile(r"world[_ ]size[=: ]{1,3}(?P<n>\d{1,6})|nRanks (?P<ranks>\d{1,6})")

    def __init__(self) -> None:
        self._reports: dict[int, Record] = {}
        self._works: dict[int, tuple[int, str]] = {}
        self._enqueued: dict[int, int] = {}
        self._seconds = ""
        self._world = 0
        self._last: Record | None = None

    def see(self, record: Record) -> None:
        """Take in a report, a rank's progress, or the size of the world."""
        text = record.text
        if "world" in text or "nRanks" in text:
            self._size(text)
        if "atchdog" not in text and "NCCL work" not in text:
            return
        rank = self._rank(record)
        if rank is None:
            return
        for progress in self._PROGRESS.finditer(text):
            if progress["seq"]:
                self._enqueued[rank] = int(progress["seq"])
        caught = self._CAUGHT.search(text)
        if caught is None:
            return
        self._last = record
        self._reports.setdefault(rank, record)
        if work := self._WORK.search(caught["work"]):
            self._works.setdefault(rank, (int(work["seq"]), work["op"]))
        if ran := self._RAN.search(caught["work"]):
            self._seconds = self._seconds or f"{int(ran['ms']) / 1000:.0f}"

    def _size(self, text: str) -> None:
        if found := self._WORLD.search(text):
            self._world = max(self._world, int(found["n"] or found["ranks"]))

    def _rank(self, record: Record) -> int | None:
        """The label's rank counts over all nodes; the one in brackets may count inside a group."""
        if record.rank is not None:
            return record.rank
        found = self._RANK.search(record.text)
        return int(found["rank"]) if found else None

    def sightings(self, story: Story) -> Iterator[Sighting]:
        """One incident over all ranks, the suspects named."""
        if not self._reports or self._last is None:
            return
        first = next(iter(self._reports.values()))
        count = len(self._reports)
        seq, op = min(self._works.values()) if self._works else (0, "a collective")
        silent, advice = self._suspects(story)
        values = {
            "reporting": ("s " if count > 1 else " ") + numbers(self._reports),
            "silent": silent,
            "advice": advice,
            "op": op,
            "seq": str(seq) if seq else "?",
            "seconds": self._seconds or "?",
        }
        yield Sighting(
            "collective-timeout", first, self._last, count, values, tuple(f"rank {r}" for r in self._reports)
        )

    def _suspects(self, story: Story) -> tuple[str, str]:
        world = max(self._world, story.facts.world_size or 0, max(self._reports) + 1)
        missing = [rank for rank in range(world) if rank not in self._reports]
        if missing and len(missing) < world:
            ranks = numbers(missing)
            several = len(missing) > 1
            return (
                f"rank{'s' if several else ''} {ranks} {'are' if several else 'is'} silent",
                f"look at rank{'s' if several else ''} {ranks}: {'they are' if several else 'it is'} what the "
                f"others waited for; "
                f"{_HANG}",
            )
        behind = self._behind()
        if behind:
            ranks = numbers(behind)
            return (
                f"rank{'s' if len(behind) > 1 else ''} {ranks} is behind the others",
                f"look at rank {ranks}: {_HANG}",
            )
        return (
            "all ranks report it",
            "look at the network between the ranks (NCCL_DEBUG=INFO, link errors), and set "
            "TORCH_NCCL_TRACE_BUFFER_SIZE to have "
            "the next time-out dump what each rank did",
        )

    def _behind(self) -> list[int]:
        """Ranks whose collective is another one than most ranks', or that queued fewer."""
        works = {rank: f"{seq} {op}" for rank, (seq, op) in self._works.items()}
        for table in (works, {rank: str(seq) for rank, seq in self._enqueued.items()}):
            [(usual, count), *others] = Counter(table.values()).most_common() or [("", 0)]
            if others and count > len(table) / 2:
                return sorted(rank for rank, work in table.items() if work != usual)
        return []


def numbers(ranks: Iterable[int]) -> str:
    """``0–2, 4``."""
    ordered = sorted(ranks)
    parts: list[list[int]] = []
    for rank in ordered:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return ", ".join(f"{p[0]}–{p[-1]}" if len(p) > 2 else ", ".join(str(rank) for rank in p) for p in parts)
