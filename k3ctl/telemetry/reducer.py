"""Fold events into bounded state. Pure: no clock, no I/O; the same events always give the same state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from k3ctl.server import witness
from k3ctl.server.witness import Counts, WitnessInfo, WorkerPage
from k3ctl.telemetry import bench
from k3ctl.telemetry.bench import BenchState
from k3ctl.telemetry.engines import EngineSample, ServerSample, server_sample
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
from k3ctl.telemetry.measures import moved, went_backwards, window

_T = TypeVar("_T")

KEEP_S = 70.0
"""Samples kept per engine: the longest window, and one interval more."""
HISTORY_POINTS = 900
LOG_LINES = 400


@dataclass(frozen=True)
class Point:
    """One point of a server's history; rates of the interval before it, None across a restart or a gap."""

    t: float
    output_tok_s: float | None = None
    prompt_tok_s: float | None = None
    running: float | None = None
    waiting: float | None = None
    engagement: float | None = None
    acceptance_length: float | None = None


@dataclass(frozen=True)
class EngineTrack:
    """Recent samples of one engine since its last restart, oldest first."""

    samples: tuple[tuple[float, EngineSample], ...]
    moved_at: float

    @property
    def newest(self) -> EngineSample:
        """The last sample."""
        return self.samples[-1][1]


@dataclass(frozen=True)
class ServerTrack:
    """Everything known about one server."""

    source: str
    engines: Mapping[str, EngineTrack] = field(default_factory=dict)
    sample: ServerSample | None = None
    first_read_at: float | None = None
    read_at: float | None = None
    problems: tuple[str, ...] = ()
    failure: str = ""
    failed_since: float | None = None
    restarts: tuple[float, ...] = ()
    rejections: tuple[tuple[float, float], ...] = ()
    witness: tuple[tuple[float, Mapping[int, Counts]], ...] = ()
    witness_info: WitnessInfo | None = None
    workers: tuple[WorkerPage, ...] = ()
    witness_failure: str = ""
    history: tuple[Point, ...] = ()


@dataclass(frozen=True)
class NodeTrack:
    """The last two GPU readings of one node."""

    source: str
    newest: GpusRead | None = None
    before: GpusRead | None = None
    failure: str = ""


@dataclass(frozen=True)
class LogLine:
    """One line of the log screen."""

    t: float
    level: str
    text: str


@dataclass(frozen=True)
class State:
    """All feeds so far."""

    servers: Mapping[str, ServerTrack] = field(default_factory=dict)
    nodes: Mapping[str, NodeTrack] = field(default_factory=dict)
    stages: Mapping[tuple[str, str], StageChanged] = field(default_factory=dict)
    incidents: tuple[IncidentFound, ...] = ()
    bench: BenchState | None = None
    failures: Mapping[str, str] = field(default_factory=dict)
    log: tuple[LogLine, ...] = ()


def reduce(state: State, event: Event) -> State:
    """The state after one more event."""
    match event:
        case MetricsRead():
            return _metrics(state, event)
        case WitnessRead():
            track = _server(state, event.source)
            return _with_server(state, replace(track, workers=event.workers, witness_failure=""))
        case GpusRead():
            node = state.nodes.get(event.source, NodeTrack(event.source))
            node = NodeTrack(event.source, newest=event, before=node.newest)
            return replace(state, nodes={**state.nodes, event.source: node})
        case StageChanged():
            return _stage(state, event)
        case IncidentFound():
            state = replace(state, incidents=(*state.incidents, event)[-LOG_LINES:])
            return _log(state, event.t, event.severity, f"{event.rule}: {event.title}")
        case BenchReported():
            return replace(state, bench=bench.advance(state.bench, event))
        case FeedFailed():
            return _failed(state, event)


def reduce_all(events: Iterable[Event], state: State | None = None) -> State:
    """The state after all ``events``."""
    state = state or State()
    for event in events:
        state = reduce(state, event)
    return state


def _server(state: State, source: str) -> ServerTrack:
    return state.servers.get(source, ServerTrack(source))


def _with_server(state: State, track: ServerTrack) -> State:
    return replace(state, servers={**state.servers, track.source: track})


def _log(state: State, t: float, level: str, text: str) -> State:
    return replace(state, log=(*state.log, LogLine(t, level, text))[-LOG_LINES:])


def _metrics(state: State, event: MetricsRead) -> State:
    track = _server(state, event.source)
    if track.read_at is not None and event.t <= track.read_at:
        return state
    sample = server_sample(event.page)
    restarted = [
        label for label, engine in track.engines.items() if _restarted(engine, sample.engines.get(label))
    ]
    if restarted:
        which = "" if len(track.engines) == 1 else f" (engine {', '.join(restarted)})"
        state = _log(state, event.t, "warn", f"{event.source} restarted{which}: its counters went back")
    elif track.failure:
        state = _log(state, event.t, "info", f"{event.source} answers again")
    elif track.read_at is None:
        state = _log(state, event.t, "info", f"{event.source} answers")
    engines = {
        **track.engines,
        **{label: _engine(track, label, event.t, new) for label, new in sample.engines.items()},
    }
    counts = witness.counts_of_page(event.page)
    track = replace(
        track,
        engines=engines,
        sample=sample,
        first_read_at=event.t if track.first_read_at is None else track.first_read_at,
        read_at=event.t,
        problems=event.page.problems,
        failure="",
        failed_since=None,
        restarts=(*track.restarts, event.t)[-20:] if restarted else track.restarts,
        rejections=_keep((*track.rejections, (event.t, sum(sample.rejections.values()))), event.t),
        witness=_witness_samples(track, event.t, counts),
        witness_info=witness.info_of_page(event.page) or track.witness_info,
    )
    point = _point(track, event.t)
    return _with_server(state, replace(track, history=(*track.history, point)[-HISTORY_POINTS:]))


def _restarted(engine: EngineTrack, newer: EngineSample | None) -> bool:
    return newer is not None and went_backwards(engine.newest, newer)


def _engine(track: ServerTrack, label: str, t: float, new: EngineSample) -> EngineTrack:
    old = track.engines.get(label)
    if old is None or went_backwards(old.newest, new):
        return EngineTrack(((t, new),), moved_at=t)
    moved_at = t if moved(old.newest, new) else old.moved_at
    return EngineTrack(_keep((*old.samples, (t, new)), t), moved_at)


def _keep(samples: tuple[tuple[float, _T], ...], now: float) -> tuple[tuple[float, _T], ...]:
    """Samples of the last KEEP_S seconds, and always the last two."""
    first = 0
    while first < len(samples) - 2 and samples[first][0] < now - KEEP_S:
        first += 1
    return samples[first:]


def _witness_samples(
    track: ServerTrack, t: float, counts: Mapping[int, Counts]
) -> tuple[tuple[float, Mapping[int, Counts]], ...]:
    if not counts:
        return track.witness
    if track.witness:
        before, after = witness.total(track.witness[-1][1]), witness.total(counts)
        if witness.difference(before, after) is None:
            return ((t, counts),)
    return _keep((*track.witness, (t, counts)), t)


def _point(track: ServerTrack, t: float) -> Point:
    windows = []
    for engine in track.engines.values():
        if len(engine.samples) >= 2 and engine.samples[-1][0] == t:
            (before, older), (_, newer) = engine.samples[-2:]
            windows.append(window(t - before, older, newer))
    gauges = [engine.newest.gauges for engine in track.engines.values()]
    drafts = sum(part.counts.get("drafts", 0.0) for part in windows)
    accepted = sum(part.counts.get("accepted_tokens", 0.0) for part in windows)
    return Point(
        t=t,
        output_tok_s=_sum(part.rates.get("generation_tokens") for part in windows),
        prompt_tok_s=_sum(part.rates.get("prompt_tokens") for part in windows),
        running=_sum(gauge.get("running") for gauge in gauges),
        waiting=_sum(gauge.get("waiting") for gauge in gauges),
        engagement=_engagement(track),
        acceptance_length=1.0 + accepted / drafts if drafts > 0 else None,
    )


def _engagement(track: ServerTrack) -> float | None:
    if len(track.witness) < 2:
        return None
    change = witness.difference(witness.total(track.witness[-2][1]), witness.total(track.witness[-1][1]))
    return witness.engagement(change) if change else None


def _sum(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) if present else None


def _stage(state: State, event: StageChanged) -> State:
    key = (event.source, event.stage)
    before = state.stages.get(key)
    state = replace(state, stages={**state.stages, key: event})
    if before is not None and before.state == event.state:
        return state
    level = "fail" if event.state == "failed" else "info"
    detail = f": {event.detail}" if event.detail else ""
    return _log(state, event.t, level, f"stage {event.stage} {event.state}{detail}")


def _failed(state: State, event: FeedFailed) -> State:
    if event.feed == "gpus":
        node = state.nodes.get(event.source, NodeTrack(event.source))
        return replace(state, nodes={**state.nodes, event.source: replace(node, failure=event.reason)})
    if event.feed == "witness":
        track = replace(_server(state, event.source), witness_failure=event.reason, workers=())
        return _with_server(state, track)
    if event.feed == "metrics":
        track = _server(state, event.source)
        if track.failure != event.reason:
            state = _log(state, event.t, "warn", f"{event.source}: {event.reason}")
        gap = Point(event.t)
        since = event.t if track.failed_since is None else track.failed_since
        history = (*track.history, gap)[-HISTORY_POINTS:]
        return _with_server(state, replace(track, failure=event.reason, failed_since=since, history=history))
    if state.failures.get(event.feed) == event.reason:
        return state
    return replace(state, failures={**state.failures, event.feed: event.reason})
