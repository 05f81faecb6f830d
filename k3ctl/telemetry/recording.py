"""Recordings: events as JSON lines, small enough to leave running.

The first line is a header; each further line is one event. A metrics page is written as the series that
changed since the page before it, with every 60th page in full, so that a damaged line costs a minute at most.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from k3ctl import __version__, files
from k3ctl.deployment import UNKNOWN, Deployment
from k3ctl.errors import UsageError
from k3ctl.facts import products
from k3ctl.server.prometheus import Page, Series
from k3ctl.server.witness import StepCount, WorkerPage, workers_of_table
from k3ctl.telemetry import gpus
from k3ctl.telemetry.events import (
    BenchReported,
    Event,
    FeedFailed,
    GpusRead,
    IncidentFound,
    MetricsRead,
    StageChanged,
    WitnessRead,
)

SCHEMA = "k3ctl.recording/1"
FULL_PAGE_EVERY = 60
"""Metrics pages between two full ones."""


_FEED_OF: Mapping[type[Event], str] = {
    WitnessRead: "witness",
    GpusRead: "gpus",
    StageChanged: "run",
    IncidentFound: "run",
    BenchReported: "bench",
}

LINE_BYTES = 8 << 20
"""Longest line that is read as one."""


@dataclass
class _SourceCodec:
    """Series numbering and last values of one server, on either side of the file."""

    ids: dict[Series, int] = field(default_factory=dict)
    names: dict[int, Series] = field(default_factory=dict)
    last: dict[Series, float] = field(default_factory=dict)
    pages: int = 0


class Recorder:
    """Writes events to a file, from several threads if need be. A full disk ends the recording only."""

    def __init__(self, path: Path, deployment: Deployment | None = None) -> None:
        try:
            self._file: TextIO | None = path.open("w", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write the recording `{path}`: {error.strerror}") from error
        self.error: str = ""
        self.events = 0
        self._lock = threading.Lock()
        self._codecs: dict[str, _SourceCodec] = {}
        self._failing: dict[tuple[str, str], str] = {}
        self._write({"schema": SCHEMA, "k3ctl": __version__, "deployment": asdict(deployment or UNKNOWN)})

    def write(self, event: Event) -> None:
        """Append one event; a failure that is already on record is not written again."""
        with self._lock:
            if self._file is not None and not self._repeats(event):
                self._write(self._encode(event))
                self.events += not self.error

    def close(self) -> None:
        """Finish the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _repeats(self, event: Event) -> bool:
        """Whether a feed fails as it did at its last event. Metrics failures all count: each is a gap."""
        if isinstance(event, MetricsRead) or (isinstance(event, FeedFailed) and event.feed == "metrics"):
            return False
        key = (event.source, event.feed if isinstance(event, FeedFailed) else _FEED_OF[type(event)])
        reason = event.reason if isinstance(event, FeedFailed) else ""
        repeats = bool(reason) and self._failing.get(key) == reason
        self._failing[key] = reason
        return repeats

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._file is not None
        try:
            self._file.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as error:
            self.error = f"recording stopped: {error.strerror}"
            self._file = None

    def _encode(self, event: Event) -> dict[str, Any]:
        if isinstance(event, MetricsRead):
            return self._encode_page(event)
        return encode(event)

    def _encode_page(self, event: MetricsRead) -> dict[str, Any]:
        codec = self._codecs.setdefault(event.source, _SourceCodec())
        full = codec.pages % FULL_PAGE_EVERY == 0
        codec.pages += 1
        if full:
            codec.ids.clear()
            codec.last.clear()
        names: dict[str, list[Any]] = {}
        values: dict[str, float] = {}
        for series, value in event.page.series.items():
            if series not in codec.ids:
                codec.ids[series] = len(codec.ids)
                names[str(codec.ids[series])] = [series[0], dict(series[1])]
            if codec.last.get(series) != value:
                values[str(codec.ids[series])] = int(value) if value == int(value) else value
        gone = [codec.ids[series] for series in codec.last if series not in event.page.series]
        codec.last = dict(event.page.series)
        line: dict[str, Any] = {"kind": "metrics", "t": event.t, "source": event.source, "values": values}
        optional = {"full": full, "names": names, "gone": gone, "problems": list(event.page.problems)}
        return line | {key: value for key, value in optional.items() if value}


def encode(event: Event) -> dict[str, Any]:
    """One event as a line's object; of a metrics page only a ``Recorder`` knows how."""
    line: dict[str, Any] = {"t": event.t, "source": event.source}
    match event:
        case FeedFailed():
            return {"kind": "failed", **line, "feed": event.feed, "reason": event.reason}
        case WitnessRead():
            return {"kind": "witness", **line, "workers": [_encode_worker(page) for page in event.workers]}
        case GpusRead():
            samples = [gpus.to_json(sample) for sample in event.gpus]
            return {"kind": "gpus", **line, "gpus": samples, "findings": [asdict(f) for f in event.findings]}
        case StageChanged():
            fields = {name: getattr(event, name) for name in ("stage", "state", "done", "total", "detail")}
            return {"kind": "stage", **line, **fields}
        case IncidentFound():
            fields = {name: getattr(event, name) for name in ("rule", "severity", "title", "action")}
            return {"kind": "incident", **line, **fields}
        case BenchReported():
            return {"kind": "bench", **line, "data": dict(event.data)}
    raise TypeError(f"no encoding for {type(event).__name__}")


def _encode_worker(page: WorkerPage) -> dict[str, Any]:
    row = {name: getattr(page, name) for name in WorkerPage.__dataclass_fields__ if name != "counts"}
    steps = [_encode_count(key.__dict__, count) for key, count in page.counts.items()]
    return {**row, "refused": list(page.refused), "steps": steps}


def _encode_count(key: Mapping[str, str], count: StepCount) -> dict[str, Any]:
    return {**key, "steps": count.steps, "rows": count.rows, "tokens": count.tokens}


def decode(line: str) -> Event | None:
    """The event of a line that ``encode`` made; None for a damaged one."""
    return _Decoder().decode(line)


@dataclass(frozen=True)
class Recording:
    """A recording that was read: its events in order of time, and how many lines could not be used."""

    events: tuple[Event, ...]
    skipped_lines: int = 0
    deployment: Deployment = UNKNOWN

    @property
    def start(self) -> float:
        """Time of the first event, Unix seconds."""
        return self.events[0].t

    @property
    def end(self) -> float:
        """Time of the last event, Unix seconds."""
        return self.events[-1].t


def read(path: Path) -> Recording:
    """Read a recording. A truncated or damaged one is used as far as it goes.

    Raises UsageError when the file cannot be read, is not a recording, or holds no event.
    """
    decoder = _Decoder()
    skipped = 0
    events: list[Event] = []
    try:
        with files.opened(path) as data, io.TextIOWrapper(data, "utf-8", errors="replace") as lines:
            deployment = _header(path, lines.readline(1 << 16))
            while line := lines.readline(LINE_BYTES):
                event = decoder.decode(line)
                if event is None:
                    skipped += 1
                else:
                    events.append(event)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the recording `{path}`: {files.reason(error)}") from error
    if not events:
        raise UsageError(
            f"the recording `{path}` holds no event", hint="record one with `k3ctl monitor --record FILE`"
        )
    return Recording(tuple(sorted(events, key=lambda event: event.t)), skipped, deployment)


def _header(path: Path, line: str) -> Deployment:
    """What was being served. Raises UsageError when the file is no recording."""
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    schema = header.get("schema") if isinstance(header, dict) else None
    if schema != SCHEMA:
        found = f"its schema is `{schema}`" if schema else "its first line is no header"
        raise UsageError(
            f"`{path}` is not a recording: {found}",
            hint="`k3ctl monitor --replay` reads what `--record` wrote",
        )
    return _deployment(header.get("deployment"))


_OLD_NAMES = {
    "profile": "name",
    "gpu": "gpu",
    "tensor_parallel_size": "tensor_parallel",
    "num_speculative_tokens": "draft_tokens",
    "speculator": "speculator",
}
"""Fields of a deployment by their names in recordings before there was one ``Deployment``."""


def _deployment(kept: Any) -> Deployment:
    """The deployment in a header; unknown where it cannot be read."""
    if not isinstance(kept, Mapping):
        return UNKNOWN
    if "name" in kept:
        old = {field: kept.get(name) or None for field, name in _OLD_NAMES.items()}
        product = products.token(str(old["gpu"] or ""))
        kept = {**old, "gpu": product.token if product else None}
    known = {name: value for name, value in kept.items() if name in Deployment.__dataclass_fields__}
    return Deployment(**known)


class _Decoder:
    def __init__(self) -> None:
        self._codecs: dict[str, _SourceCodec] = {}

    def decode(self, line: str) -> Event | None:
        """The event of a line, or None when it is damaged or of a kind that this version does not know."""
        try:
            row = json.loads(line)
            t, source = float(row["t"]), str(row["source"])
            if not 0 <= t < 1e11:  # no time of day: it cannot be shown, and the others would wait for it
                return None
            if row["kind"] == "metrics":
                return self._page(row, t, source)
            return _decode_plain(row, t, source)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None

    def _page(self, row: Mapping[str, Any], t: float, source: str) -> MetricsRead:
        codec = self._codecs.setdefault(source, _SourceCodec())
        if row.get("full"):
            codec.names.clear()
            codec.last = {}
        for number, (name, labels) in row.get("names", {}).items():
            codec.names[int(number)] = (str(name), tuple(sorted((str(k), str(v)) for k, v in labels.items())))
        series = dict(codec.last)
        for number in row.get("gone", ()):
            series.pop(codec.names[int(number)], None)
        for number, value in row["values"].items():
            series[codec.names[int(number)]] = float(value)
        codec.last = series
        return MetricsRead(
            t, source, Page(series, tuple(str(problem) for problem in row.get("problems", ())))
        )


def _decode_plain(row: Mapping[str, Any], t: float, source: str) -> Event | None:
    match row["kind"]:
        case "failed":
            return FeedFailed(t, source, str(row["feed"]), str(row["reason"]))
        case "witness":
            table = {"schema": "k3.witness.table/1", "workers": row["workers"]}
            return WitnessRead(t, source, workers_of_table(table))
        case "gpus":
            samples = tuple(gpus.from_json(sample) for sample in row["gpus"])
            return GpusRead(t, source, samples, tuple(gpus.GpuFinding(**f) for f in row.get("findings", ())))
        case "stage":
            texts = (str(row["stage"]), str(row["state"]))
            return StageChanged(t, source, *texts, int(row["done"]), int(row["total"]), str(row["detail"]))
        case "incident":
            names = ("rule", "severity", "title", "action")
            return IncidentFound(t, source, *(str(row[name]) for name in names))
        case "bench":
            return BenchReported(t, source, dict(row["data"]))
    return None
