"""One benchmark run: preflight, client and sampler side by side, raw files, summary.

Everything that a summary needs is written to ``raw/`` first; the summary is computed from those files alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from k3ctl.engine import rundir
from k3ctl.errors import EngineError, ExitCode, K3Error, UsageError
from k3ctl.loadtest import child, clientcpu, clients, compare, live, prefix, scrape, summary, target, tokens
from k3ctl.loadtest.child import Child
from k3ctl.loadtest.clients import ClientRun
from k3ctl.loadtest.live import LiveState
from k3ctl.loadtest.power import PowerSampler
from k3ctl.loadtest.sampler import Sampler
from k3ctl.loadtest.scrape import Sample
from k3ctl.loadtest.target import Target
from k3ctl.loadtest.workload import Workload
from k3ctl.server.client import Client

POLL_S = 0.2
LINE_S = 1.0
STALL_ENV = "K3CTL_BENCH_STALL_S"
STALL_S = 120.0
"""A client that reports nothing for this long, while the server has nothing to do, is stopped."""


@dataclass
class Driven:
    """What came of the client processes, in their order: exit status, and what the server said to ``prefix.reset``."""

    statuses: list[int | None] = field(default_factory=list)
    prefix_resets: list[str] = field(default_factory=list)
    stalled: list[str] = field(default_factory=list)
    interrupted: bool = False


@dataclass(frozen=True)
class BenchResult:
    """Where the raw files are, and what they say."""

    dir: Path
    summary: Mapping[str, Any]
    exit_code: ExitCode

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """Summary rows, one per concurrency step."""
        return list(self.summary["rows"])


def run(
    load: Workload,
    to: Target,
    *,
    out: Path,
    on_line: Callable[[str], None] | None = None,
    tool: str = "guidellm",
    api_key: str | None = None,
    stop: threading.Event | None = None,
) -> BenchResult:
    """Run ``load`` against ``to`` and leave ``raw/`` and ``summary.json`` in the new directory ``out``.

    ``on_line`` gets at most one line per second. Ctrl-C, or ``stop`` when this does not run in the main thread,
    stops the client's whole process group, keeps what finished and returns a partial result with exit code 130.

    Raises:
        MachineError: the client is not installed.
        EngineError: the server does not answer, or went away before anything finished.
        K3Error: the client failed before anything finished.
    """
    version = clients.version(tool)
    client = Client(to.url, api_key=api_key)
    target.preflight(to, client)
    metrics, witness = scrape.fetch(client)
    to = target.with_server_facts(to, scrape.server_facts(metrics or "", witness))
    raw = out / "raw"
    raw.mkdir(parents=True)
    load, runs = clients.plan(load, to, raw, client, tool)
    _dump(raw / "tokenize.json", tokens.ask_server(client, to.model))
    _dump(raw / "references.json", compare.references(load, to.deployment))
    asked = {"workload": load.as_dict(), "target": to.as_dict(), "client": f"{tool} {version}"}
    _dump(raw / "ask.json", {**asked, "runs": [clients.as_dict(one) for one in runs]})
    started_at = time.time()
    stall_s = _stall_s(os.environ)
    environment = clients.child_env(os.environ, load, to, api_key)
    driven = _drive(
        load,
        to,
        client,
        raw,
        runs=runs,
        env=environment,
        on_line=on_line,
        stop=stop or threading.Event(),
        stall_s=stall_s,
    )
    answers = client.healthy()
    outcome = {"started_at": started_at, "ended_at": time.time(), **asdict(driven), "server_answers": answers}
    _dump(raw / "outcome.json", outcome)
    result = summary.summarize(raw)
    if not result["rows"] and not driven.interrupted:
        raise _failure(to, raw, driven.statuses, answers=answers)
    _dump(out / "summary.json", result)
    return BenchResult(out, result, exit_code(result, interrupted=driven.interrupted))


def exit_code(result: Mapping[str, Any], *, interrupted: bool) -> ExitCode:
    """130 after Ctrl-C, 4 when the server is gone, 1 when a row is invalid or missing, else 0."""
    if interrupted:
        return ExitCode.INTERRUPTED
    if not result["server_answers"]:
        return ExitCode.ENGINE
    return ExitCode.OK if result["valid"] else ExitCode.FAILED


def new_dir(preset: str, now: float | None = None) -> Path:
    """A fresh result directory name under the state root: ``bench/20261130-101500-8k1k``."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    name = Path(preset).stem
    base = rundir.state_root() / "bench"
    candidates = (base / f"{stamp}-{name}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 100))))
    return next(path for path in candidates if not path.exists())


def _drive(
    load: Workload,
    to: Target,
    client: Client,
    raw: Path,
    *,
    runs: Sequence[ClientRun],
    env: Mapping[str, str],
    on_line: Callable[[str], None] | None,
    stop: threading.Event,
    stall_s: float,
) -> Driven:
    """Run the client processes one after the other, the prefix cache emptied before each where that is offered."""
    follower = _Follower(LiveState(steps=len(load.concurrency), duration_s=load.duration_s), on_line)
    driven = Driven()
    busy = clientcpu.Recorder(raw)
    with _quiet(to), Sampler(client, raw, on_sample=follower.sample), PowerSampler(to, raw):
        for one in runs:
            tail = one.tail(raw)
            _mark(raw, one)
            off = to.deployment.prefix_caching is False
            driven.prefix_resets.append(prefix.OFF if off else prefix.reset(client))
            follower.begins()
            with Child(one.command, cwd=raw, env=env, log=raw / "client.log") as process:
                try:
                    while process.poll() is None and not stop.wait(POLL_S):
                        follower.events(tail)
                        busy(process.pid)
                        if follower.still_s() > stall_s:
                            driven.stalled.append(f"{one.report}: no progress for {follower.still_s():.0f} s")
                            process.stop()
                except KeyboardInterrupt:
                    stop.set()
                if stop.is_set():
                    process.stop()
                    driven.statuses.append(process.poll())
                    driven.interrupted = True
                    return driven
                follower.events(tail)
                driven.statuses.append(process.poll())
    return driven


def _stall_s(environ: Mapping[str, str]) -> float:
    """Seconds without progress after which a client is given up; ``K3CTL_BENCH_STALL_S`` changes them."""
    text = environ.get(STALL_ENV, "")
    try:
        seconds = float(text) if text else STALL_S
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise UsageError(
            f"{STALL_ENV}={text} is not a number of seconds", hint=f"for example {STALL_ENV}=300"
        )
    return seconds


def _mark(raw: Path, one: ClientRun) -> None:
    """Write which process the following events belong to."""
    line = json.dumps({"ts": time.time(), "kind": "client_start", "tool": one.tool, "sessions": one.sessions})
    with (raw / clients.EVENTS).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


class _Follower:
    """Folds events and samples into the live state and hands on at most one new line per second."""

    def __init__(self, state: LiveState, on_line: Callable[[str], None] | None) -> None:
        self._state, self._on_line = state, on_line
        self._samples: list[Sample] = []
        self._last_line, self._shown = 0.0, ""
        self._moved = time.monotonic()

    def begins(self) -> None:
        """A client process starts: nothing is expected of it yet."""
        self._moved = time.monotonic()

    def still_s(self) -> float:
        """Seconds since the client reported anything or the server had work; both count as progress."""
        return time.monotonic() - self._moved

    def sample(self, sample: Sample) -> None:
        """Called by the sampler's thread. A page without gauges does not tell, so it is no idle server."""
        if None in (sample.running, sample.waiting) or (sample.running or 0) + (sample.waiting or 0) > 0:
            self._moved = time.monotonic()
        self._samples = [*self._samples[-1:], sample]

    def events(self, tail: Callable[[], Iterator[Mapping[str, Any]]]) -> None:
        """Fold what is new and report."""
        for event in tail():
            self._state = live.on_event(self._state, event)
            self._moved = time.monotonic()
        if len(samples := self._samples) == 2:
            self._state = live.on_samples(self._state, *samples)
        line = self._state.line()
        if self._on_line and line != self._shown and time.monotonic() - self._last_line >= LINE_S:
            self._last_line, self._shown = time.monotonic(), line
            self._on_line(line)


def _quiet(to: Target) -> contextlib.AbstractContextManager[None]:
    """Keep the supervisor's canary requests out of the measurement, when the run is one of ours."""
    return rundir.quiet(Path(to.run_dir)) if to.run_dir else contextlib.nullcontext()


def _failure(to: Target, raw: Path, statuses: list[int | None], *, answers: bool) -> K3Error:
    reasons = child.tail(raw / "client.log")
    log = f"the client's log is `{raw / 'client.log'}`"
    if not answers:
        return EngineError(
            f"`{to.url}` stopped answering before any request finished", hint=log, reasons=reasons
        )
    return K3Error(f"the client ended with status {statuses[-1]} and no result", hint=log, reasons=reasons)


def _dump(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
