"""Which server is meant: the one meaning of ``--url``, ``--run`` and neither, for every command."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from k3ctl.engine import rundir
from k3ctl.engine.rundir import Run
from k3ctl.errors import EngineError, UsageError

DEFAULT_URL = "http://127.0.0.1:8000"
KEY = "VLLM_API_KEY"
"""Environment variable with the server's API key."""
EXAMPLE = f"for example `{DEFAULT_URL}`"


@dataclass(frozen=True)
class Server:
    """One server. ``run``: the run of this machine behind it; None for a server that k3ctl did not start here."""

    url: str
    run: Run | None = None


def one(url: str | None = None, run: str | None = None) -> Server:
    """The server that ``--url`` or ``--run`` names, else the newest that is ready, else the newest that starts.

    Raises:
        UsageError: both are given, nothing has that name, or nothing runs.
        EngineError: the run that is named has ended.
    """
    if url and run:
        raise UsageError("--url and --run name two servers", hint="give one of them")
    if url:
        address = base_url(url)
        return Server(address, behind(address))
    found = rundir.find(run) if run else rundir.latest_live()
    if found is None:
        raise UsageError(
            "no server is running", hint="start one with `k3ctl serve --profile NAME`, or give --url"
        )
    if not found.live():
        raise EngineError(f"run `{found.id}` is {found.status()}", hint="`k3ctl ps` shows what runs")
    return Server(base_url(found.url), found)


def ready(server: Server) -> Server:
    """The server, when it has not still to start. Raises EngineError."""
    if server.run is not None and server.run.state == "starting":
        raise EngineError(
            f"run `{server.run.id}` is still starting", hint="`k3ctl ps` shows when it is ready"
        )
    return server


def behind(url: str) -> Run | None:
    """The live run of this machine that serves at ``url``: a run that has ended says nothing about it."""
    with contextlib.suppress(UsageError):
        run = rundir.find(base_url(url))
        return run if run.live() else None
    return None


def only() -> Run:
    """The one live run, for commands that change it.

    Raises:
        UsageError: none is live, or several are.
    """
    live = [run for run in rundir.all_runs() if run.live()]
    if len(live) > 1:
        raise UsageError(f"{len(live)} engines are running: name one", reasons=[run.id for run in live])
    if not live:
        raise UsageError(
            "no engine is running", hint="`k3ctl ps --all` shows the ones that ended; name one of them"
        )
    return live[0]


def api_key(environ: Mapping[str, str], name: str = KEY) -> str | None:
    """The key to send, from the environment: never from an argument, which `ps` would show."""
    return environ.get(name) or None


def base_url(text: str) -> str:
    """``host:port`` or any URL of the server, as its base URL. Raises UsageError when it is neither."""
    candidate = text.strip() if "://" in text else f"http://{text.strip()}"
    try:
        parts = urlsplit(candidate)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"`{text}` is not a server address: {error}", hint=EXAMPLE) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or any(c.isspace() for c in parts.netloc):
        raise UsageError(f"`{text}` is not a server address", hint=EXAMPLE)
    path = parts.path.rstrip("/").removesuffix("/metrics").removesuffix("/v1")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{path}"
