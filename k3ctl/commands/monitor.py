"""`k3ctl monitor`: one live screen for serving, speculation, path and GPUs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3ctl import output
from k3ctl.errors import ExitCode, K3Error, UsageError
from k3ctl.output import CommandResult, Lines

if TYPE_CHECKING:
    from k3ctl.engine.rundir import Run
    from k3ctl.telemetry.recording import Recorder
    from k3ctl.telemetry.reference import Deployment
    from k3ctl.telemetry.view import View
    from k3ctl.tui.sources import Feed

SCHEMA = "k3ctl.monitor/1"
DEFAULT_URL = "http://127.0.0.1:8000"

UrlOption = Annotated[
    list[str] | None,
    typer.Option("--url", help="Server to watch; repeat for several. Default: the running one."),
]
RunOption = Annotated[
    str | None, typer.Option("--run", help="Run of `k3ctl serve` to watch (id or directory).")
]
ProfileOption = Annotated[
    str | None, typer.Option("--profile", help="Profile that is served: picks the figures to compare with.")
]
OnceOption = Annotated[bool, typer.Option("--once", help="Print one snapshot and exit (--json implies it).")]
IntervalOption = Annotated[
    float, typer.Option("--interval", min=0.2, max=60.0, help="Seconds between two readings of a server.")
]
RecordOption = Annotated[
    Path | None, typer.Option("--record", help="Write what is read to this file (JSON lines).")
]
ReplayOption = Annotated[
    Path | None, typer.Option("--replay", help="Show a recording instead of a live server.")
]
SpeedOption = Annotated[
    float, typer.Option("--speed", min=0.125, max=512.0, help="Replay speed: recording seconds per second.")
]
BenchOption = Annotated[Path | None, typer.Option("--bench", help="Event file of a benchmark to follow.")]
GpusOption = Annotated[bool, typer.Option("--gpus/--no-gpus", help="Read the GPUs of this node.")]


def register(app: typer.Typer, command: Callable[..., Any]) -> None:
    """Add the command."""
    command(
        app,
        "monitor",
        epilog="Examples: k3ctl monitor · k3ctl monitor --url host:8000 --url host:8001 · "
        "k3ctl monitor --once --json · k3ctl monitor --record day.jsonl · k3ctl monitor --replay day.jsonl --speed 10",
    )(monitor)


def monitor(
    url: UrlOption = None,
    run: RunOption = None,
    profile: ProfileOption = None,
    once: OnceOption = False,
    interval: IntervalOption = 1.0,
    record: RecordOption = None,
    replay: ReplayOption = None,
    speed: SpeedOption = 1.0,
    bench: BenchOption = None,
    gpus: GpusOption = True,
    as_json: bool = False,
) -> CommandResult:
    """Watch a deployment: throughput, latency, decode path, speculation, GPUs, a benchmark, the log.

    Reads /metrics, the witness, NVML and the run directory; changes nothing and sends no request to the model.
    On a terminal it is a screen (? shows the keys); anywhere else it prints one plain line per interval.
    """
    if replay is not None:
        if url or run or record or bench:
            raise UsageError(
                "--replay shows a recording: it cannot be combined with --url, --run, --record, --bench"
            )
        return _replay(replay, speed, profile, interval, once or as_json)
    watched = _runs(url, run)
    deployment = _deployment(profile, watched)
    recorder = _recorder(record)
    try:
        feeds = _feeds(url, watched, interval, bench, gpus, recorder)
        if once or as_json:
            return _snapshot(feeds, interval, deployment)
        _watch(feeds, interval, deployment)
    finally:
        if recorder is not None:
            recorder.close()
    return _done(recorder, record)


def _watch(feeds: Sequence[Feed], interval: float, deployment: Deployment) -> None:
    """The screen on a terminal, lines elsewhere."""
    if _is_terminal():
        from k3ctl.tui.app import MonitorApp

        MonitorApp(feeds, deployment=deployment).run()
        return
    from k3ctl.tui import plain

    plain.stream(feeds, interval, deployment, output.write_text)


def _replay(path: Path, speed: float, profile: str | None, interval: float, once: bool) -> CommandResult:
    from k3ctl.telemetry import recording, rules
    from k3ctl.telemetry.replay import Player
    from k3ctl.telemetry.view import build

    recorded = recording.read(path)
    player = Player(recorded, speed)
    deployment = _deployment(profile, [])
    warnings = [f"{recorded.skipped_lines} damaged lines skipped"] if recorded.skipped_lines else []
    if once:
        player.seek_to(player.length_s)
        return _result(rules.judge(build(player.state, player.at, deployment)), warnings)
    for warning in warnings:
        output.note(f"warning: {warning}")
    if _is_terminal():
        from k3ctl.tui.app import MonitorApp

        MonitorApp(player=player, deployment=deployment).run()
    else:
        from k3ctl.tui import plain

        plain.play(player, interval, deployment, output.write_text)
    return CommandResult(SCHEMA, {"replayed": str(path), "seconds": player.length_s})


def _snapshot(feeds: Sequence[Feed], interval: float, deployment: Deployment) -> CommandResult:
    """One view; exit status 4 when no server answered."""
    from k3ctl.tui import plain

    view = plain.look_once(feeds, interval, deployment)
    result = _result(view, [])
    if any(server.state == "up" for server in view.servers):
        return result
    failures = [f"{server.source}: {server.failure or 'no answer'}" for server in view.servers]
    return CommandResult(SCHEMA, result.data, result.blocks, ExitCode.ENGINE, failures)


def _result(view: View, warnings: Sequence[str]) -> CommandResult:
    from k3ctl.telemetry import snapshot

    return CommandResult(SCHEMA, snapshot.to_json(view), [Lines(snapshot.lines(view))], warnings=warnings)


def _done(recorder: Recorder | None, path: Path | None) -> CommandResult:
    if recorder is None:
        return CommandResult(SCHEMA, {"recorded": None})
    warnings = [recorder.error] if recorder.error else []
    hint = Lines(
        [f"recorded {recorder.events} events to {path}; see them with `k3ctl monitor --replay {path}`"]
    )
    return CommandResult(
        SCHEMA, {"recorded": str(path), "events": recorder.events}, [hint], warnings=warnings
    )


def _recorder(path: Path | None) -> Recorder | None:
    if path is None:
        return None
    from k3ctl.telemetry.recording import Recorder

    return Recorder(path)


def _runs(urls: Sequence[str] | None, run: str | None) -> list[Run]:
    """The runs of this machine that are watched: the named one, those behind the URLs, or the one that is live."""
    from k3ctl.engine import rundir

    if run is not None:
        return [rundir.find(run)]
    if urls is None:
        live = rundir.latest_live()
        return [live] if live else []
    found = []
    for url in urls:
        with contextlib.suppress(K3Error):
            found.append(rundir.find(_base(url)))
    return found


def _base(url: str) -> str:
    from k3ctl.telemetry.scrape import base_url

    return base_url(url)


def _feeds(
    urls: Sequence[str] | None,
    runs: Sequence[Run],
    interval: float,
    bench: Path | None,
    gpus: bool,
    recorder: Recorder | None,
) -> list[Feed]:
    from k3ctl.tui.run_source import RunFeed
    from k3ctl.tui.sources import BenchFeed, Recorded, server_feeds

    servers = [_base(url) for url in urls or [run.url for run in runs] or [DEFAULT_URL]]
    feeds: list[Feed] = [feed for server in dict.fromkeys(servers) for feed in server_feeds(server, interval)]
    feeds += [RunFeed(run.dir) for run in runs]
    if bench is not None:
        feeds.append(BenchFeed(bench))
    if gpus:
        from k3ctl.tui.gpu_source import GpuFeed

        feeds.append(GpuFeed())
    return [Recorded(feed, recorder) for feed in feeds] if recorder is not None else feeds


def _deployment(profile: str | None, runs: Sequence[Run]) -> Deployment:
    """What is served, from the named profile or the run's; unknown where neither says."""
    from k3ctl.telemetry.reference import Deployment

    if profile is not None:
        return _described(profile)
    for run in runs:
        with contextlib.suppress(K3Error):
            return _described(run.profile)
    return Deployment()


def _described(profile: str) -> Deployment:
    from k3ctl.profiles import loader
    from k3ctl.profiles.resolve import resolve
    from k3ctl.telemetry.reference import Deployment

    resolved = resolve(loader.load(profile), environ=os.environ)
    gpu = resolved.profile.requires.gpu
    drafts = resolved.get("speculative_config.num_speculative_tokens")
    parallel = resolved.args.get("tensor_parallel_size")
    return Deployment(
        name=resolved.profile.name,
        gpu=gpu[0].lower() if gpu else "",
        tensor_parallel=int(parallel) if parallel is not None else None,
        draft_tokens=int(drafts) if drafts is not None else None,
    )


def _is_terminal() -> bool:
    return sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM", "") != "dumb"
