"""What to watch: the runs of this machine, the feeds of servers, runs, benchmark and GPUs, and what is served."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from k3ctl.deployment import UNKNOWN, Deployment, of_config, of_run
from k3ctl.engine import rundir
from k3ctl.engine.rundir import Run
from k3ctl.errors import UsageError
from k3ctl.feeds.gpu_source import GpuFeed
from k3ctl.feeds.rack_source import NodeGpuFeed, TunnelFeed
from k3ctl.feeds.run_source import RunFeed
from k3ctl.feeds.sources import BenchFeed, Feed, server_feeds
from k3ctl.profiles import loader
from k3ctl.profiles.resolve import resolve
from k3ctl.rack import record, tunnel
from k3ctl.rack.record import Group
from k3ctl.server import which
from k3ctl.server.client import SCREEN_S


def chosen(
    urls: Sequence[str],
    run: str | None,
    profile: str | None,
    *,
    bench: Path | None,
    gpus: bool,
    **limits: float,
) -> tuple[list[Feed], Deployment]:
    """The feeds that a command wants, and what is served. ``limits``: ``interval_s`` and ``deadline_s``.

    Raises UsageError for a name that means nothing; EngineError: there is no way to a group's server.
    """
    found = group(urls, run)
    if found is None:
        watched = runs(urls, run)
        return feeds(urls, watched, bench=bench, gpus=gpus, **limits), deployment(profile, watched)
    mine = [one for one in rundir.all_runs() if one.id == found.members[0].run]
    return group_feeds(found, mine, bench=bench, gpus=gpus, **limits), deployment(profile, mine)


def group(urls: Sequence[str], run: str | None) -> Group | None:
    """The group to watch: the named one, else, when nothing is named, the only one that lives. Raises UsageError."""
    if run is not None:
        return None if _is_run(run) else record.find(run)
    live = [] if urls else record.live()
    members = {member.run for one in live for member in one.members}
    alone = any(found.live() and found.id not in members for found in rundir.all_runs())
    return live[0] if len(live) == 1 and not alone else None


def _is_run(name: str) -> bool:
    try:
        rundir.find(name)
    except UsageError:
        return False
    return True


def group_feeds(
    watched: Group, mine: Sequence[Run], *, bench: Path | None, gpus: bool, **limits: float
) -> list[Feed]:
    """The feeds of a group: its server, if need be through ssh, node 0's run if it is ``mine``, every node's GPUs.

    Raises EngineError: there is no way to its server.
    """
    ways: list[Feed] = []
    url = watched.url
    if tunnel.needed(watched):
        way = tunnel.Tunnel(watched.hosts[0], watched.url)
        way.open()
        url = way.url
        ways.append(TunnelFeed(way))
    wanted = [*feeds([url], mine, bench=bench, gpus=False, **limits), *ways]
    if gpus:
        wanted += [NodeGpuFeed(host, watched.remote_k3ctl) for host in watched.hosts]
    return wanted


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
