"""Which decode path ran, as far as a log can tell, and how long its steps took."""

from __future__ import annotations

import re
from collections.abc import Iterator

from k3ctl.facts.k3 import SPECIALIZED_ROWS
from k3ctl.triage.detectors import Detector, Sighting, Story
from k3ctl.triage.records import Record


class DecodePath(Detector):
    """Which decode path the graph table admits, when the specialized one was asked for."""

    MARKS = ("FULL ", "PIECEWISE", "NONE ", "throughput")
    _ROW = re.compile(
        r"^\| {0,40}(\d{1,9}) {0,40}\| {0,40}(\d{1,9}) {0,40}\| {0,40}\d{1,9} {0,40}\| {0,40}(FULL|PIECEWISE|NONE) "
        r"{0,40}"
        r"\| {0,40}(\d{1,12}) {0,40}\|$"
    )
    _RUNNING = re.compile(r"Running: (\d{1,9}) reqs")

    def __init__(self) -> None:
        self._q = 1
        self._running = 0
        self._first: Record | None = None
        self._last: Record | None = None
        self._steps: dict[tuple[int, str], int] = {}

    def see(self, record: Record) -> None:
        """The number of running requests, rows of the table."""
        if record.text.startswith("|") and (row := self._ROW.match(record.text.strip())):
            _, padded, mode, count = row.groups()
            self._first = self._first or record
            self._last = record
            key = (int(padded), mode)
            self._steps[key] = self._steps.get(key, 0) + int(count)
        elif "throughput" in record.text and (running := self._RUNNING.search(record.text)):
            self._running = max(self._running, int(running[1]))

    def sightings(self, story: Story) -> Iterator[Sighting]:
        """A share, and the reason that accounts for most of the rest."""
        self._q = 1 + story.facts.speculative_tokens
        decode = {step: n for step, n in self._steps.items() if self._decodes(*step)}
        total = sum(decode.values())
        if not (story.facts.specialized and total) or self._first is None or self._last is None:
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


class Iterations(Detector):
    """Decode step times by concurrency, from the iteration details."""

    MARKS = ("Iteration(",)
    _LINE = re.compile(
        r"Iteration\(\d{1,12}\): 0 context requests, .{0,80}?(?P<c>\d{1,9}) generation requests, .{0,80}?elapsed "
        r"time: "
        r"(?P<ms>[\d.]{1,20}) ms"
    )

    def __init__(self) -> None:
        self._first: Record | None = None
        self._last: Record | None = None
        self._times: dict[int, tuple[int, float]] = {}

    def see(self, record: Record) -> None:
        """Add a pure decode step."""
        if "Iteration(" in record.text and (found := self._LINE.search(record.text)):
            self._first = self._first or record
            self._last = record
            count, total = self._times.get(int(found["c"]), (0, 0.0))
            self._times[int(found["c"])] = (count + 1, total + float(found["ms"]))

    def sightings(self, _story: Story) -> Iterator[Sighting]:
        """Mean time per concurrency."""
        if self._first is not None and self._last is not None:
            steps = ", ".join(f"{total / n:.1f} ms at c{c}" for c, (n, total) in sorted(self._times.items()))
            count = sum(n for n, _ in self._times.values())
            yield Sighting("step-times", self._first, self._last, count, {"steps": steps})
