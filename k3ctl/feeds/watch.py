"""What to watch: the runs of this machine, the feeds of servers, runs, benchmark and GPUs, and what is served."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from k3ctl.deployment import UNKNOWN, Deployment, of_config, of_run
from k3ctl.engine import rundir
from k3ctl.engine.rundir import Run
from k3ctl.feeds.gpu_source import GpuFeed
from k3ctl.feeds.run_source import RunFeed
from k3ctl.feeds.sources import BenchFeed, Feed, server_feeds
from k3ctl.profiles import loader
from k3ctl.profiles.resolve import resolve
from k3ctl.server import which
from k3ctl.server.client import SCREEN_S


def runs(urls: Sequence[str], run: str | None) -> list[Run]:
    """The runs of this machine to watch: the named one, those behind the URLs, else the one that is live.

    Raises UsageError for a run or an address that does not exist.
    """
    if run is not None:
        return [rundir.find(run)]
    if not urls:
        live = rundir.latest_live()
        return [live] if live else []
    return [found for url in urls if (found := which.behind(url)) is not None]


def feeds(
    urls: Sequence[str],
    watched: Sequence[Run],
    *,
    interval_s: float,
    bench: Path | None,
    gpus: bool,
    deadline_s: float = SCREEN_S,
) -> list[Feed]:
    """The feeds of these servers and runs; without either, of a server at the usual address."""
    servers = [which.base_url(url) for url in urls or [run.url for run in watched] or [which.DEFAULT_URL]]
    key = which.api_key(os.environ)
    chosen: list[Feed] = [
        feed
        for server in dict.fromkeys(servers)
        for feed in server_feeds(server, interval_s, deadline_s, key)
    ]
    chosen += [RunFeed(run.dir) for run in watched]
    if bench is not None:
        chosen.append(BenchFeed(bench))
    if gpus:
        chosen.append(GpuFeed())
    return chosen


def deployment(profile: str | None, watched: Sequence[Run]) -> Deployment:
    """What is served: as the named profile says, else as the first run with a record was started; else unknown."""
    if profile is not None:
        return described(profile)
    return next((known for run in watched if (known := of_run(run)) != UNKNOWN), UNKNOWN)


def described(profile: str) -> Deployment:
    """What a profile serves; its GPU where it names one only. Raises UsageError for an unknown profile."""
    resolved = resolve(loader.load(profile), environ=os.environ)
    accepted = resolved.profile.requires.gpu
    return of_config(resolved, gpu=accepted[0] if len(accepted) == 1 else None)
