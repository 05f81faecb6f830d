"""What a screen or a script shows: one frozen value, built from the state at a moment.

``None`` means unknown, everywhere. Rates cover RATE_WINDOW_S, distributions and shares LATENCY_WINDOW_S; a
figure that falls back to the engine's whole life says so in its ``basis``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from k3ctl.deployment import Deployment
from k3ctl.facts.k3 import SPECIALIZED_ROWS
from k3ctl.server import witness
from k3ctl.server.witness import Counts
from k3ctl.telemetry import measures
from k3ctl.telemetry.bench import BenchState
from k3ctl.telemetry.engines import EngineSample
from k3ctl.telemetry.events import IncidentFound, StageChanged
from k3ctl.telemetry.gpus import GpuFinding, GpuSample
from k3ctl.telemetry.measures import Acceptance, Latency, Window, combine, window
from k3ctl.telemetry.reducer import EngineTrack, LogLine, NodeTrack, Point, ServerTrack, State
from k3ctl.telemetry.reference import Golden, StepAnchor, golden, step_anchor

RATE_WINDOW_S = 10.0
LATENCY_WINDOW_S = 60.0
LATE_AFTER_S = 6.0
"""A server that has not been read for this long is late."""


@dataclass(frozen=True)
class Load:
    """Serving figures of one engine, or summed over engines.

    ``kv_sequences`` is how many sequences of the model's full length fit (``kv_cache_max_concurrency``),
    ``totals`` are counters since the engine's start, ``recent`` the increments of the latency window;
    ``prompt_length`` is in tokens, over all finished requests.
    """

    running: float | None = None
    waiting: float | None = None
    waiting_by_reason: Mapping[str, float] = field(default_factory=dict)
    kv_usage: float | None = None
    kv_sequences: float | None = None
    output_tok_s: float | None = None
    prompt_tok_s: float | None = None
    steps_per_s: float | None = None
    ttft: Latency | None = None
    itl: Latency | None = None
    e2e: Latency | None = None
    queue: Latency | None = None
    prompt_length: Latency | None = None
    prefix_hit_share: float | None = None
    acceptance: Acceptance | None = None
    totals: Mapping[str, float] = field(default_factory=dict)
    recent: Mapping[str, float] = field(default_factory=dict)
    finished: Mapping[str, float] = field(default_factory=dict)
    finished_recent: Mapping[str, float] = field(default_factory=dict)
    window_s: float = 0.0

    @property
    def draft_tokens(self) -> int:
        """K: draft positions that the engine reports; 0 without speculation."""
        return self.acceptance.draft_tokens if self.acceptance else 0


@dataclass(frozen=True)
class EngineView:
    """One engine. ``quiet_s`` is how long it has made no progress, ``cache_info`` its cache configuration."""

    label: str
    load: Load
    quiet_s: float
    cache_info: Mapping[str, str]


@dataclass(frozen=True)
class ServerView:
    """One server. ``state``: ``waiting`` (never answered), ``up``, ``late`` or ``down``."""

    source: str
    state: str
    model: str
    engines: tuple[EngineView, ...]
    age_s: float | None
    failure: str
    down_s: float | None
    restarts: int
    restarted_s: float | None
    problems: tuple[str, ...]
    rejections: float
    rejections_recent: float


@dataclass(frozen=True)
class PathView:
    """Which decode path runs. ``basis`` is empty when no witness reports; then ``absence`` says why.

    ``counts`` and ``engagement`` cover the basis; ``rows_now`` is the query rows of a decode step at the
    present concurrency, running × (K+1); ``excluded`` are settings that rule the specialized path out.
    """

    basis: str = ""
    absence: str = ""
    counts: Counts = field(default_factory=dict)
    total: Counts = field(default_factory=dict)
    engagement: float | None = None
    engagement_total: float | None = None
    backend: str = ""
    known_build: bool | None = None
    platform: str = ""
    versions: str = ""
    ranks: int = 0
    ranks_disagree: bool = False
    max_rows: int = SPECIALIZED_ROWS
    refused: tuple[str, ...] = ()
    rows_now: float | None = None
    rows_per_step: float | None = None
    step_ms: float | None = None
    anchor: StepAnchor | None = None
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True)
class GpuView:
    """One GPU with its NVLink rate over the last reading interval, bytes per second and direction."""

    sample: GpuSample
    nvlink_tx_bytes_s: float | None = None
    nvlink_rx_bytes_s: float | None = None
    nvlink_errors_new: int = 0


@dataclass(frozen=True)
class NodeView:
    """The GPUs of one node, or why there are none."""

    source: str
    gpus: tuple[GpuView, ...]
    failure: str
    age_s: float | None
    findings: tuple[GpuFinding, ...] = ()


@dataclass(frozen=True)
class Alert:
    """A rule that fires now. ``severity``: ``fail``, ``warn`` or ``info``."""

    rule: str
    severity: str
    title: str
    detail: str
    action: str
    where: str = ""


@dataclass(frozen=True)
class View:
    """Everything at one moment."""

    now: float
    deployment: Deployment
    servers: tuple[ServerView, ...] = ()
    load: Load = field(default_factory=Load)
    path: PathView = field(default_factory=PathView)
    golden: Golden | None = None
    nodes: tuple[NodeView, ...] = ()
    bench: BenchState | None = None
    stages: tuple[StageChanged, ...] = ()
    incidents: tuple[IncidentFound, ...] = ()
    log: tuple[LogLine, ...] = ()
    history: tuple[Point, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    alerts: tuple[Alert, ...] = ()


def build(state: State, now: float, deployment: Deployment | None = None) -> View:
    """The view at ``now`` (Unix seconds), before ``rules.judge`` adds the alerts."""
    deployment = deployment or Deployment()
    tracks = list(state.servers.values())
    answering = [track for track in tracks if not track.failure and track.engines]
    load = _load([engine for track in answering for engine in track.engines.values()])
    path = _path(tracks, load, deployment)
    return View(
        now=now,
        deployment=deployment,
        servers=tuple(_server(track, now) for track in tracks),
        load=load,
        path=path,
        golden=golden(deployment, path.platform, load.draft_tokens),
        nodes=tuple(_node(node, now) for node in state.nodes.values()),
        bench=state.bench,
        stages=tuple(state.stages.values()),
        incidents=state.incidents,
        log=state.log,
        history=_history(tracks),
        failures=state.failures,
    )


def _server(track: ServerTrack, now: float) -> ServerView:
    age = None if track.read_at is None else max(0.0, now - track.read_at)
    if track.failure:
        status = "down" if track.read_at is not None else "waiting"
    elif age is None:
        status = "waiting"
    else:
        status = "late" if age > LATE_AFTER_S else "up"
    engines = tuple(
        EngineView(
            label=label,
            load=_load([engine]),
            quiet_s=engine.samples[-1][0] - engine.moved_at,
            cache_info=engine.newest.cache_info,
        )
        for label, engine in track.engines.items()
    )
    rejected = [count for _, count in track.rejections]
    return ServerView(
        source=track.source,
        state=status,
        model=track.sample.model if track.sample else "",
        engines=engines,
        age_s=age,
        failure=track.failure,
        down_s=None if track.failed_since is None else max(0.0, now - track.failed_since),
        restarts=len(track.restarts),
        restarted_s=max(0.0, now - track.restarts[-1]) if track.restarts else None,
        problems=track.problems,
        rejections=rejected[-1] if rejected else 0.0,
        rejections_recent=max(0.0, rejected[-1] - rejected[0]) if rejected else 0.0,
    )


def _load(engines: Sequence[EngineTrack]) -> Load:
    short = combine([part for engine in engines if (part := _window(engine, RATE_WINDOW_S))])
    long = combine([part for engine in engines if (part := _window(engine, LATENCY_WINDOW_S))])
    whole = combine([measures.since_start(engine.newest) for engine in engines])
    newest = [engine.newest for engine in engines]
    steps = short.histograms.get("iteration_tokens")
    hit_share = measures.share(long, "prefix_hits", "prefix_queries")
    return Load(
        running=_total(newest, "running"),
        waiting=_total(newest, "waiting"),
        waiting_by_reason=measures.add(sample.waiting_by_reason for sample in newest),
        kv_usage=_mean(sample.gauges.get("kv_usage") for sample in newest),
        kv_sequences=_kv_sequences(newest),
        output_tok_s=short.rates.get("generation_tokens"),
        prompt_tok_s=short.rates.get("prompt_tokens"),
        steps_per_s=steps.count / short.seconds if steps and short.seconds > 0 else None,
        ttft=measures.latency(long, whole, "ttft"),
        itl=measures.latency(long, whole, "itl"),
        e2e=measures.latency(long, whole, "e2e"),
        queue=measures.latency(long, whole, "queue"),
        prompt_length=measures.latency(whole, whole, "prompt_length"),
        prefix_hit_share=hit_share
        if hit_share is not None
        else measures.share(whole, "prefix_hits", "prefix_queries"),
        acceptance=measures.acceptance(long, whole),
        totals=whole.counts,
        recent=long.counts,
        finished=whole.finished,
        finished_recent=long.finished,
        window_s=long.seconds,
    )


def _window(engine: EngineTrack, seconds: float) -> Window | None:
    """Increments over the last ``seconds``, or over the last interval when samples are further apart."""
    if len(engine.samples) < 2:
        return None
    end, newest = engine.samples[-1]
    start, oldest = next(
        ((t, sample) for t, sample in engine.samples[:-1] if t >= end - seconds - 0.5), engine.samples[-2]
    )
    return window(end - start, oldest, newest) if end > start else None


def _kv_sequences(samples: Iterable[EngineSample]) -> float | None:
    fits: list[float] = []
    for sample in samples:
        try:
            fits.append(float(sample.cache_info["kv_cache_max_concurrency"]))
        except (KeyError, ValueError):
            continue
    return sum(fits) if fits else None


def _total(samples: Iterable[EngineSample], gauge: str) -> float | None:
    values = [sample.gauges[gauge] for sample in samples if gauge in sample.gauges]
    return sum(values) if values else None


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def _path(tracks: Sequence[ServerTrack], load: Load, deployment: Deployment) -> PathView:
    draft_tokens = load.draft_tokens or deployment.num_speculative_tokens or 0
    rows_now = load.running * (1 + draft_tokens) if load.running else None
    step_ms = load.itl.mean_s * 1e3 if load.itl else None
    view = PathView(
        rows_now=rows_now,
        step_ms=step_ms,
        anchor=step_anchor(deployment, draft_tokens, load.running or 1.0),
        excluded=_excluded(tracks),
    )
    reporting = [track for track in tracks if track.witness and not track.failure]
    if not reporting:
        return replace(view, absence=_witness_absence(tracks))
    return _witnessed(view, reporting)


def _witness_absence(tracks: Sequence[ServerTrack]) -> str:
    if any(track.witness_failure for track in tracks):
        return next(track.witness_failure for track in tracks if track.witness_failure)
    if any(track.read_at is not None and not track.failure for track in tracks):
        return "the server exports no k3_* series: it runs without k3ctl's runtime plugin"
    return "no server answers"


def _witnessed(view: PathView, tracks: Sequence[ServerTrack]) -> PathView:
    whole: dict[witness.StepKey, witness.StepCount] = {}
    recent: dict[witness.StepKey, witness.StepCount] = {}
    seconds = 0.0
    for track in tracks:
        end, newest = track.witness[-1]
        start, oldest = next(pair for pair in track.witness if pair[0] >= end - LATENCY_WINDOW_S - 0.5)
        _merge(whole, witness.total(newest))
        change = witness.difference(witness.total(oldest), witness.total(newest)) if end > start else None
        _merge(recent, change or {})
        seconds = max(seconds, end - start)
    seen = witness.decode_steps(recent) > 0
    basis, counts = (f"last {seconds:.0f} s", recent) if seen else (measures.SINCE_START, whole)
    workers = [page for track in tracks for page in track.workers]
    info = next((track.witness_info for track in tracks if track.witness_info), None)
    steps = [
        sum(count.steps for count in rank.values())
        for track in tracks
        for rank in track.witness[-1][1].values()
    ]
    decode = [count for key, count in counts.items() if key.kind == "decode"]
    decode_steps = sum(count.steps for count in decode)
    return replace(
        view,
        basis=basis,
        counts=counts,
        total=whole,
        engagement=witness.engagement(counts),
        engagement_total=witness.engagement(whole),
        backend=info.decode_backend if info else "",
        known_build=info.known_build if info else None,
        platform=info.platform if info else "",
        versions=f"runtime {info.runtime} · vLLM {info.vllm}" if info else "",
        ranks=len(steps),
        ranks_disagree=len(steps) > 1 and max(steps) - min(steps) > 0.02 * max(steps) + 20,
        max_rows=next((page.max_rows for page in workers if page.max_rows), SPECIALIZED_ROWS),
        refused=tuple(dict.fromkeys(reason for page in workers for reason in page.refused)),
        rows_per_step=sum(count.tokens for count in decode) / decode_steps if decode_steps else None,
    )


def _merge(into: dict[witness.StepKey, witness.StepCount], counts: Counts) -> None:
    for key, count in counts.items():
        into[key] = into.get(key, witness.StepCount()) + count


def _excluded(tracks: Sequence[ServerTrack]) -> tuple[str, ...]:
    """Cache configuration that vLLM 0.33.0's specialized decode refuses or cannot use."""
    found: list[str] = []
    for track in tracks:
        for engine in track.engines.values():
            info = engine.newest.cache_info
            if info.get("use_replayssm") == "True" or info.get("use_kda_recoverssm") == "True":
                found.append("--use-replayssm is on: the specialized path refuses it")
            if info.get("mamba_ssm_cache_dtype", "auto") not in {"auto", "float32"}:
                found.append(
                    f"KDA state is {info['mamba_ssm_cache_dtype']}: the specialized path needs float32"
                )
    return tuple(dict.fromkeys(found))


def _node(node: NodeTrack, now: float) -> NodeView:
    if node.newest is None:
        return NodeView(node.source, (), node.failure, None)
    before = {sample.index: sample for sample in node.before.gpus} if node.before else {}
    seconds = node.newest.t - node.before.t if node.before else 0.0
    gpus = tuple(_gpu(sample, before.get(sample.index), seconds) for sample in node.newest.gpus)
    age = max(0.0, now - node.newest.t)
    return NodeView(node.source, gpus, node.failure, age, node.newest.findings)


def _gpu(sample: GpuSample, before: GpuSample | None, seconds: float) -> GpuView:
    if before is None or seconds <= 0:
        return GpuView(sample)
    return GpuView(
        sample,
        nvlink_tx_bytes_s=_rate(before.nvlink_tx_bytes, sample.nvlink_tx_bytes, seconds),
        nvlink_rx_bytes_s=_rate(before.nvlink_rx_bytes, sample.nvlink_rx_bytes, seconds),
        nvlink_errors_new=max(0, (sample.nvlink_errors or 0) - (before.nvlink_errors or 0)),
    )


def _rate(older: int | None, newer: int | None, seconds: float) -> float | None:
    if older is None or newer is None or newer < older:
        return None
    return (newer - older) / seconds


def _history(tracks: Sequence[ServerTrack]) -> tuple[Point, ...]:
    """History of the deployment: the only server's own, or the servers' summed in one-second bins."""
    if len(tracks) == 1:
        return tracks[0].history
    bins: dict[int, list[Point]] = {}
    for track in tracks:
        for point in track.history:
            bins.setdefault(round(point.t), []).append(point)
    return tuple(_sum_points(float(t), bins[t]) for t in sorted(bins))


def _sum_points(t: float, points: Sequence[Point]) -> Point:
    def total(name: str) -> float | None:
        values = [value for point in points if (value := getattr(point, name)) is not None]
        return sum(values) if values else None

    return Point(
        t=t,
        output_tok_s=total("output_tok_s"),
        prompt_tok_s=total("prompt_tok_s"),
        running=total("running"),
        waiting=total("waiting"),
        engagement=_mean(point.engagement for point in points),
        acceptance_length=_mean(point.acceptance_length for point in points),
    )
