"""`k3ctl monitor`: one live screen for serving, speculation, path and GPUs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3ctl import completion, output
from k3ctl.errors import ExitCode, UsageError
from k3ctl.output import CommandResult, Lines

if TYPE_CHECKING:
    from k3ctl.deployment import Deployment
    from k3ctl.feeds.sources import Feed
    from k3ctl.telemetry.view import View

SCHEMA = "k3ctl.monitor/1"

UrlOption = Annotated[
    list[str] | None,
    typer.Option("--url", help="Server to watch; repeat for several. Default: the running one."),
]
RunOption = Annotated[
    str | None,
    typer.Option(
        "--run", help="Run of `k3ctl serve` to watch (id or directory).", autocompletion=completion.live_runs
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help="Profile that is served: picks the figures to compare with.",
        autocompletion=completion.profiles,
    ),
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

ExportOption = Annotated[
    str | None,
    typer.Option(
        "--export",
        metavar="[HOST]:PORT",
        help="Serve a page for Prometheus instead of a screen; on loopback.",
    ),
]


def register(app: typer.Typer, command: Callable[..., Any]) -> None:
    """Add the command."""
    command(
        app,
        "monitor",
        epilog="Examples: k3ctl monitor · k3ctl monitor --url host:8000 --url host:8001 · "
        "k3ctl monitor --once --json · k3ctl monitor --export :9401 · "
        "k3ctl monitor --record day.jsonl · k3ctl monitor --replay day.jsonl --speed 10",
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
    export: ExportOption = None,
    as_json: bool = False,
) -> CommandResult:
    """Watch a deployment: throughput, latency, decode path, speculation, GPUs, a benchmark, the log.

    Reads /metrics, the witness, NVML and the run directory; changes nothing, and sends no request to the model unless
    you press c (`k3ctl canary`).
    On a terminal it is a screen (? shows the keys); anywhere else it prints one plain line per interval.
    """
    if export is not None and (once or as_json or replay or record):
        raise UsageError(
            "--export serves a page: it cannot be combined with --once, --json, --replay, --record"
        )
    if replay is not None:
        if url or run or record or bench:
            raise UsageError(
                "--replay shows a recording: it cannot be combined with --url, --run, --record, --bench"
            )
        return _replay(replay, speed, profile, interval, once or as_json)
    from k3ctl.feeds import watch
    from k3ctl.server.client import PATIENT_S, SCREEN_S

    feeds, deployment = watch.chosen(
        url or [],
        run,
        profile,
        interval_s=interval,
        bench=bench,
        gpus=gpus,
        deadline_s=PATIENT_S if once or as_json else SCREEN_S,
    )
    if export is not None:
        return _export(feeds, deployment, export)
    if record is not None:
        return _recorded(record, feeds, interval, deployment, once or as_json)
    return _live(feeds, interval, deployment, once or as_json)


def _export(feeds: Sequence[Feed], deployment: Deployment, where: str) -> CommandResult:
    from k3ctl.feeds import export

    with contextlib.suppress(KeyboardInterrupt):
        export.serve(feeds, deployment, where, told=output.note)
    return CommandResult(SCHEMA, {"exported": where})


def _live(feeds: Sequence[Feed], interval: float, deployment: Deployment, once: bool) -> CommandResult:
    if once:
        return _snapshot(feeds, interval, deployment)
    _watch(feeds, interval, deployment)
    return CommandResult(SCHEMA, {})


def _recorded(
    path: Path, feeds: Sequence[Feed], interval: float, deployment: Deployment, once: bool
) -> CommandResult:
    from k3ctl.feeds.sources import Recorded
    from k3ctl.telemetry.recording import Recorder

    recorder = Recorder(path, deployment)
    try:
        result = _live([Recorded(feed, recorder) for feed in feeds], interval, deployment, once)
    finally:
        recorder.close()
        output.note(recorder.error or f"recorded {recorder.events} events to {path}")
    return result


def _watch(feeds: Sequence[Feed], interval: float, deployment: Deployment) -> None:
    """The screen on a terminal, lines elsewhere."""
    if _is_terminal():
        from k3ctl.tui.app import MonitorApp

        MonitorApp(feeds, deployment=deployment).run()
        return
    from k3ctl.feeds import plain

    plain.stream(feeds, interval, deployment, output.write_text)


def _replay(path: Path, speed: float, profile: str | None, interval: float, once: bool) -> CommandResult:
    from k3ctl.feeds import watch
    from k3ctl.telemetry import recording, rules
    from k3ctl.telemetry.replay import Player
    from k3ctl.telemetry.view import build

    recorded = recording.read(path)
    player = Player(recorded, speed)
    deployment = watch.described(profile) if profile is not None else recorded.deployment
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
        from k3ctl.feeds import plain

        plain.play(player, interval, deployment, output.write_text)
    return CommandResult(SCHEMA, {"replayed": str(path), "seconds": player.length_s})


def _snapshot(feeds: Sequence[Feed], interval: float, deployment: Deployment) -> CommandResult:
    """One view; exit status 4 when no server answered."""
    from k3ctl.feeds import plain

    view = plain.look_once(feeds, interval, deployment)
    result = _result(view, [])
    if any(server.state == "up" for server in view.servers):
        return result
    failures = [f"{server.source}: {server.failure or 'no answer'}" for server in view.servers]
    return CommandResult(SCHEMA, result.data, result.blocks, ExitCode.ENGINE, failures)


def _result(view: View, warnings: Sequence[str]) -> CommandResult:
    from k3ctl.telemetry import snapshot

    return CommandResult(SCHEMA, snapshot.to_json(view), [Lines(snapshot.lines(view))], warnings=warnings)


def _is_terminal() -> bool:
    return sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM", "") != "dumb"
