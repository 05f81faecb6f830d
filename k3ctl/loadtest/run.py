"""One benchmark run: preflight, client and sampler side by side, raw files, summary.

Everything that a summary needs is written to ``raw/`` first; the summary is then computed from those files
alone.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from k3ctl.engine import rundir
from k3ctl.engine.client import Client
from k3ctl.errors import EngineError, ExitCode, K3Error, MachineError
from k3ctl.loadtest import child, guidellm_args, live, scrape, summary, target
from k3ctl.loadtest.child import Child
from k3ctl.loadtest.events import Tail
from k3ctl.loadtest.live import LiveState
from k3ctl.loadtest.sampler import Sampler
from k3ctl.loadtest.scrape import Sample
from k3ctl.loadtest.target import Target
from k3ctl.loadtest.workload import Workload

BRIDGE = Path(__file__).parent / "bridge" / "guidellm_bridge.py"
POLL_S = 0.2
LINE_S = 1.0


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
    on_state: Callable[[LiveState], None] | None = None,
    api_key: str | None = None,
) -> BenchResult:
    """Run ``load`` against ``to`` and leave ``raw/`` and ``summary.json`` in the new directory ``out``.

    ``on_line`` gets one line per second. Ctrl-C stops the client's whole process group, keeps what finished
    and returns a partial result with exit code 130.

    Raises:
        MachineError: GuideLLM is not installed.
        EngineError: the server does not answer, or went away before anything finished.
        K3Error: the client failed before anything finished.
    """
    client_version = installed_guidellm()
    client = Client(to.url, api_key=api_key)
    target.preflight(to, client)
    metrics, witness = scrape.fetch(client)
    to = target.with_server_facts(to, scrape.server_facts(metrics or "", witness))
    raw = out / "raw"
    raw.mkdir(parents=True)
    argv = guidellm_args.argv(load, to, output="guidellm.json")
    _dump(raw / "ask.json", {"workload": load.as_dict(), "target": to.as_dict(), "argv": ["guidellm", *argv]})
    started_at = time.time()
    status, interrupted = _drive(load, to, client, raw, argv, on_line, on_state, api_key)
    outcome = {
        "started_at": started_at,
        "ended_at": time.time(),
        "status": status,
        "interrupted": interrupted,
    }
    _dump(raw / "outcome.json", {**outcome, "client": f"guidellm {client_version}"})
    result = summary.summarize(raw)
    if not result["rows"] and not interrupted:
        raise _failure(to, raw, status, client)
    _dump(out / "summary.json", result)
    code = ExitCode.INTERRUPTED if interrupted else ExitCode.OK if result["valid"] else ExitCode.FAILED
    return BenchResult(out, result, code)


def installed_guidellm() -> str:
    """Version of the GuideLLM in this environment, without importing it.

    Raises:
        MachineError: there is none.
    """
    try:
        return importlib.metadata.version("guidellm")
    except importlib.metadata.PackageNotFoundError:
        raise MachineError(
            "GuideLLM is not installed in this environment",
            hint="pip install 'k3ctl[bench]' (brings guidellm 0.8.1)",
        ) from None


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
    argv: list[str],
    on_line: Callable[[str], None] | None,
    on_state: Callable[[LiveState], None] | None,
    api_key: str | None,
) -> tuple[int | None, bool]:
    """Start the client and follow it to its end; returns its exit status and whether Ctrl-C ended it."""
    state = _Follower(LiveState(steps=len(load.concurrency), duration_s=load.duration_s), on_line, on_state)
    command = [sys.executable, str(BRIDGE), "events.jsonl", *argv]
    environment = child_env(os.environ, load, to, api_key)
    tail = Tail(raw / "events.jsonl")
    with (
        _quiet(to),
        Sampler(client, raw, on_sample=state.sample),
        Child(command, cwd=raw, env=environment, log=raw / "client.log") as process,
    ):
        try:
            while process.poll() is None:
                state.events(tail)
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            process.stop()
            return process.poll(), True
        state.events(tail)
        return process.poll(), False


class _Follower:
    """Folds events and samples into the live state and hands it on, at most one line per second."""

    def __init__(
        self,
        state: LiveState,
        on_line: Callable[[str], None] | None,
        on_state: Callable[[LiveState], None] | None,
    ) -> None:
        self._state, self._on_line, self._on_state = state, on_line, on_state
        self._samples: list[Sample] = []
        self._last_line = 0.0
        self._shown = ""

    def sample(self, sample: Sample) -> None:
        """Called by the sampler's thread."""
        self._samples = [*self._samples[-1:], sample]

    def events(self, tail: Callable[[], Iterator[Mapping[str, Any]]]) -> None:
        """Fold what is new and report."""
        for event in tail():
            self._state = live.on_event(self._state, event)
        if len(samples := self._samples) == 2:
            self._state = live.on_samples(self._state, *samples)
        if self._on_state:
            self._on_state(self._state)
        line = self._state.line()
        if self._on_line and line != self._shown and time.monotonic() - self._last_line >= LINE_S:
            self._last_line, self._shown = time.monotonic(), line
            self._on_line(line)


def child_env(parent: Mapping[str, str], load: Workload, to: Target, api_key: str | None) -> dict[str, str]:
    """The client's environment: the parent's, the preset's client settings, and no proxy towards the
    target.
    """
    host = urlsplit(to.url).hostname or ""
    unproxied = ",".join(part for part in (parent.get("no_proxy") or parent.get("NO_PROXY"), host) if part)
    own = {
        "NO_COLOR": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "no_proxy": unproxied,
        "NO_PROXY": unproxied,
        **load.client_env,
    }
    return {**parent, **own, **({"K3CTL_BENCH_API_KEY": api_key} if api_key else {})}


def _quiet(to: Target) -> contextlib.AbstractContextManager[None]:
    """Keep the supervisor's canary requests out of the measurement, when the run is one of ours."""
    return rundir.quiet(Path(to.run_dir)) if to.run_dir else contextlib.nullcontext()


def _failure(to: Target, raw: Path, status: int | None, client: Client) -> K3Error:
    reasons = child.tail(raw / "client.log")
    log = f"the client's log is `{raw / 'client.log'}`"
    if not client.healthy():
        return EngineError(
            f"`{to.url}` stopped answering before any request finished", hint=log, reasons=reasons
        )
    return K3Error(f"GuideLLM ended with status {status} and no result", hint=log, reasons=reasons)


def _dump(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
