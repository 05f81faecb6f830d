"""What no single line shows. A detector sees every record and, at the end, names rules with their values."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from k3ctl.facts.k3 import SPECIALIZED_ROWS
from k3ctl.signals import stalled
from k3ctl.triage.records import Record

HUNG_WARNINGS = 5
"""vLLM warns once a minute: this many in a row without anything else are a hang, not a long step."""


@dataclass(frozen=True)
class Sighting:
    """A rule that a detector fires: where it began, and the values for its texts."""

    rule: str
    first: Record
    last: Record
    count: int
    values: Mapping[str, str]
    who: tuple[str, ...] = ()


class Detector(Protocol):
    """One thing to look for over a whole log."""

    def see(self, record: Record) -> None:
        """Take in one record."""

    def sightings(self) -> Iterator[Sighting]:
        """What was seen, after the last record."""

    def details(self) -> Mapping[str, Mapping[str, str]]:
        """Values for rules that patterns fire: rule id → name → text."""


class Waiting:
    """Slow or hung: do the k/n counters move while vLLM warns that a process is busy?"""

    _WARNING = re.compile(r"No available shared memory broadcast block found")
    _COUNTER = re.compile(r"(?P<what>[^|%]*?):?\s*\d+%.*?\|\s*(?P<done>\d+)/(?P<total>\d+)")
    _BAR = re.compile(r"\[(?P<spent>[\d:]+)<(?P<left>[\d:]+)")

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
        if self._WARNING.search(record.text):
            self._first_warning = self._first_warning or record
            self._last_warning = record
            self._warnings += 1
            if not self._in_a_row:
                self._row_start = record
            self._in_a_row += 1
        elif counted := self._COUNTER.search(record.text):
            self._count(counted, record)
        elif record.stamp and "throughput" not in record.text:
            self._in_a_row = 0

    def _count(self, counted: re.Match[str], record: Record) -> None:
        what = re.sub(r"^\[\w+\]:?\s*", "", counted["what"]).strip()
        done, total = int(counted["done"]), int(counted["total"])
        if bar := self._BAR.search(record.text):
            self._spent, self._left = _clock(bar["spent"]), _clock(bar["left"])
        old = self._counter
        if old is None or old[0] != what or old[3] != total:
            self._counter, self._moved, self._in_a_row = (what, done, done, total), None, 0
        elif done > old[2]:
            self._counter, self._moved, self._in_a_row = (what, old[1], done, total), record, 0

    def sightings(self) -> Iterator[Sighting]:
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


class Stall:
    """Requests run, and no token comes."""

    _STATS = re.compile(
        r"Avg generation throughput: (?P<rate>[\d.]+) tokens/s, Running: (?P<running>\d+) reqs"
    )

    def __init__(self) -> None:
        self._start: Record | None = None
        self._worst: tuple[float, Record, Record, int, str] | None = None
        self._lines = 0

    def see(self, record: Record) -> None:
        """Follow the periodic statistics."""
        stats = self._STATS.search(record.text)
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

    def sightings(self) -> Iterator[Sighting]:
        """The longest stall, when it was long enough."""
        if self._worst is not None and stalled(float(self._worst[4]), self._worst[0]):
            lasted, first, last, lines, running = self._worst
            yield Sighting("stalled", first, last, lines, {"running": running, "seconds": f"{lasted:.0f}"})

    def details(self) -> Mapping[str, Mapping[str, str]]:
        """Nothing."""
        return {}


class Nccl:
    """NCCL's own report: multi-node NVLink on or off, and an init that never completes."""

    _COMM = re.compile(
        r"rank \d+ nRanks (?P<ranks>\d+) nNodes (?P<nodes>\d+).*MNNVL (?P<on>[01])(?: cliqueSize "
        r"(?P<clique>\d+))?"
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
        elif (comm := self._COMM.search(record.text)) and int(comm["nodes"]) > 1:
            (self._on if comm["on"] == "1" else self._off).append(record)
            self._values = {name: comm[name] or "?" for name in ("ranks", "nodes", "clique")}

    def sightings(self) -> Iterator[Sighting]:
        """What NCCL said last."""
        stuck = [record for who, record in self._tuning.items() if who not in self._complete]
        if stuck and self._last is not None and "NVLS tuning" in self._last.text:
            yield Sighting("nvls-hang", stuck[0], self._last, len(stuck), {}, tuple(r.who for r in stuck))
        for rule, seen in (("mnnvl-off", self._off), ("mnnvl-on", [] if self._off else self._on)):
            if seen:
                yield Sighting(rule, seen[0], seen[-1], len(seen), self._values, tuple(r.who for r in seen))

    def details(self) -> Mapping[str, Mapping[str, str]]:
        """Nothing."""
        return {}


class DecodePath:
    """Which decode path the graph table admits, when the specialized one was asked for."""

    _ROW = re.compile(r"^\| *(\d+) *\| *(\d+) *\| *\d+ *\| *(FULL|PIECEWISE|NONE) *\| *(\d+) *\|$")
    _RUNNING = re.compile(r"Running: (\d+) reqs")

    def __init__(self) -> None:
        self._asked = False
        self._q = 1
        self._running = 0
        self._first: Record | None = None
        self._last: Record | None = None
        self._steps: dict[tuple[int, str], int] = {}

    def see(self, record: Record) -> None:
        """Arguments, the number of running requests, rows of the table."""
        if "non-default args:" in record.text:
            self._arguments(record.text.partition("non-default args:")[2])
        elif row := self._ROW.match(record.text.strip()):
            _, padded, mode, count = row.groups()
            self._first = self._first or record
            self._last = record
            key = (int(padded), mode)
            self._steps[key] = self._steps.get(key, 0) + int(count)
        elif running := self._RUNNING.search(record.text):
            self._running = max(self._running, int(running[1]))

    def _arguments(self, text: str) -> None:
        try:
            args: Any = ast.literal_eval(text.strip())
            extra, speculation = args.get("additional_config") or {}, args.get("speculative_config") or {}
        except (ValueError, SyntaxError, AttributeError, MemoryError, RecursionError):
            return
        self._asked = extra.get("decode_backend") == "latency_specialized"
        self._q = 1 + int(speculation.get("num_speculative_tokens") or 0)

    def sightings(self) -> Iterator[Sighting]:
        """A share, and the reason that accounts for most of the rest."""
        decode = {step: n for step, n in self._steps.items() if self._decodes(*step)}
        total = sum(decode.values())
        if not (self._asked and total) or self._first is None or self._last is None:
            return
        good = sum(n for step, n in decode.items() if self._eligible(*step))
        over = sum(n for (padded, mode), n in decode.items() if mode == "FULL" and padded > SPECIALIZED_ROWS)
        if good * 2 >= total:
            rule, values = "specialized-consistent", {"share": f"{good / total:.0%}"}
        elif over * 2 >= total:
            values = {"running": str(self._running), "q": str(self._q), "advice": self._advice()}
            rule, values["share"] = "rows-over-limit", f"{1 - good / total:.0%}"
        else:
            mode = max(decode, key=lambda step: decode[step])[1]
            rule, values = "decode-not-full", {"share": f"{1 - good / total:.0%}", "mode": mode}
        yield Sighting(rule, self._first, self._last, total, values)

    def details(self) -> Mapping[str, Mapping[str, str]]:
        """Nothing."""
        return {}

    def _decodes(self, padded: int, mode: str) -> bool:
        return mode == "FULL" or (padded <= SPECIALIZED_ROWS and padded % self._q == 0)

    def _eligible(self, padded: int, mode: str) -> bool:
        return mode == "FULL" and padded <= SPECIALIZED_ROWS and padded % self._q == 0

    def _advice(self) -> str:
        fits = SPECIALIZED_ROWS // max(self._running, 1) - 1
        fewer = f"limit concurrency with max_num_seqs={SPECIALIZED_ROWS // self._q}"
        if fits < 1 or self._q == 1:
            return fewer
        rows = self._running * (fits + 1)
        return (
            f"set speculative_config.num_speculative_tokens={fits} "
            f"({self._running} × {fits + 1} = {rows} rows), or {fewer}"
        )


class Iterations:
    """Decode step times by concurrency, from the iteration details."""

    _LINE = re.compile(
        r"Iteration\(\d+\): 0 context requests, .*?(?P<c>\d+) generation requests, .*?elapsed time: "
        r"(?P<ms>[\d.]+) ms"
    )

    def __init__(self) -> None:
        self._first: Record | None = None
        self._last: Record | None = None
        self._times: dict[int, tuple[int, float]] = {}

    def see(self, record: Record) -> None:
        """Add a pure decode step."""
        if found := self._LINE.search(record.text):
            self._first = self._first or record
            self._last = record
            count, total = self._times.get(int(found["c"]), (0, 0.0))
            self._times[int(found["c"])] = (count + 1, total + float(found["ms"]))

    def sightings(self) -> Iterator[Sighting]:
        """Mean time per concurrency."""
        if self._first is not None and self._last is not None:
            steps = ", ".join(f"{total / n:.1f} ms at c{c}" for c, (n, total) in sorted(self._times.items()))
            count = sum(n for n, _ in self._times.values())
            yield Sighting("step-times", self._first, self._last, count, {"steps": steps})

    def details(self) -> Mapping[str, Mapping[str, str]]:
        """Nothing."""
        return {}


class MemoryHolder:
    """A line of `nvidia-smi --query-compute-apps` that somebody put below the log."""

    _LINE = re.compile(r"^(?P<pid>\d+), (?P<name>VLLM::\S+), (?P<mib>\d+) MiB$")

    def __init__(self) -> None:
        self._text = ""

    def see(self, record: Record) -> None:
        """Remember who holds memory."""
        if found := self._LINE.match(record.text.strip()):
            gib = int(found["mib"]) / 1024
            self._text = f": `kill {found['pid']}` ({found['name']}, {gib:.0f} GiB)"

    def sightings(self) -> Iterator[Sighting]:
        """Nothing."""
        return iter(())

    def details(self) -> Mapping[str, Mapping[str, str]]:
        """The holder, for the rule that says that memory is held."""
        return {"gpu-memory-held": {"holder": self._text}}


def all_detectors() -> tuple[Detector, ...]:
    """A fresh set for one log."""
    return (Waiting(), Stall(), Nccl(), DecodePath(), Iterations(), MemoryHolder())


def _clock(text: str) -> float:
    """Seconds of ``08:22`` or ``1:08:22``."""
    seconds = 0
    for part in text.split(":"):
        seconds = seconds * 60 + int(part or 0)
    return float(seconds)
