"""Which client processes a workload needs: command lines, where they report, how progress is read.

One process per concurrency: GuideLLM writes its report when it ends, so a client that hangs or dies at one rate does
not take the finished rates with it. A session replay is GuideLLM over OpenTelemetry lanes, or aiperf over WEKA traces.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from k3ctl.errors import EngineError, MachineError
from k3ctl.loadtest import aiperf, guidellm_args, traces
from k3ctl.loadtest.events import Event, Tail
from k3ctl.loadtest.target import Target
from k3ctl.loadtest.workload import Workload
from k3ctl.server import models
from k3ctl.server.client import Client

BRIDGE = Path(__file__).parent / "bridge" / "guidellm_bridge.py"
EVENTS = "events.jsonl"
WEKA = "sessions.weka"
DEFAULT_TOKENS_PER_WORD = 1.3


@dataclass(frozen=True)
class ClientRun:
    """One client process. Paths are relative to the raw directory, its working directory."""

    tool: str
    """``guidellm`` or ``aiperf``."""
    command: tuple[str, ...]
    """What is executed."""
    argv: tuple[str, ...]
    """The same as an operator would type it, without the bridge."""
    report: str
    sessions: int | None = None
    """Sessions in flight of a replay; None for a workload of fixed concurrency."""

    def tail(self, raw: Path) -> Callable[[], Iterator[Event]]:
        """Reader of the process's new events."""
        if self.tool == "aiperf":
            return aiperf.Tail(raw / self.report, self.sessions or 1)
        return Tail(raw / EVENTS, from_end=True)


def version(tool: str) -> str:
    """Installed version of a client, without importing it.

    Raises:
        MachineError: it is not installed.
    """
    if tool == "aiperf":
        return aiperf.version(aiperf_path())
    try:
        return importlib.metadata.version("guidellm")
    except importlib.metadata.PackageNotFoundError:
        raise MachineError(
            "GuideLLM is not installed in this environment",
            hint="pip install 'k3ctl[bench]' (brings guidellm 0.8.1)",
        ) from None


def aiperf_path() -> str:
    """The aiperf executable: ``$K3CTL_AIPERF``, else the one on PATH. It lives in an environment of its own.

    Raises:
        MachineError: there is none.
    """
    found = os.environ.get("K3CTL_AIPERF") or shutil.which("aiperf")
    if not found or not shutil.which(found):
        raise MachineError(
            "aiperf was not found",
            hint="install aiperf>=0.13 in an environment of its own and set K3CTL_AIPERF to its executable",
        )
    return found


def plan(
    load: Workload, to: Target, raw: Path, client: Client, tool: str
) -> tuple[Workload, list[ClientRun]]:
    """The client processes of a workload, and the workload with what planning decided.

    Session traces are written to ``raw``. The lengths of generated sessions are scaled to the server's
    context, and the change is recorded as a deviation.
    """
    if load.sessions is not None:
        load, found = _sessions(load, to, client)
        if tool == "aiperf":
            _write_weka(raw, found)
        else:
            for count in load.concurrency:
                lines = traces.otel_lines(traces.lanes(found, count))
                (raw / _otel_name(count)).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return load, commands(load, to, tool, aiperf_path() if tool == "aiperf" else "")


def commands(load: Workload, to: Target, tool: str, aiperf_program: str = "aiperf") -> list[ClientRun]:
    """What is executed, from the workload and the target alone: no server is asked and nothing is written."""
    if load.sessions is None:
        return [_fixed(load, to, streams) for streams in load.concurrency]
    if tool == "aiperf":
        return [_aiperf_run(load, to, aiperf_program, count) for count in load.concurrency]
    return [_otel_run(load, to, count) for count in load.concurrency]


def child_env(parent: Mapping[str, str], load: Workload, to: Target, api_key: str | None) -> dict[str, str]:
    """The client's environment: the parent's, the preset's settings, no proxy towards the target."""
    host = urlsplit(to.url).hostname or ""
    unproxied = ",".join(part for part in (parent.get("no_proxy") or parent.get("NO_PROXY"), host) if part)
    own = {
        "K3CTL_BENCH_PARENT": str(os.getpid()),
        "NO_COLOR": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "no_proxy": unproxied,
        "NO_PROXY": unproxied,
        **load.client_env,
    }
    return {**parent, **own, **({"K3CTL_BENCH_API_KEY": api_key} if api_key else {})}


def tokens_per_word(client: Client, model: str, sample: str) -> float:
    """How many tokens the served tokenizer makes of one word of the generated text.

    Asked from vLLM's ``/tokenize``; 1.3 when the server has no such route.
    """
    try:
        answer = client.json("/tokenize", {"model": model, "prompt": sample, "add_special_tokens": False})
        count = int(answer["count"])
    except (EngineError, KeyError, TypeError, ValueError):
        return DEFAULT_TOKENS_PER_WORD
    return max(count / len(sample.split()), 0.1)


def _sessions(load: Workload, to: Target, client: Client) -> tuple[Workload, list[traces.Session]]:
    assert load.sessions is not None
    shape, note = traces.fitted(load.sessions, models.max_model_len(client, to.model))
    if note:
        load = load.changed(note, sessions=shape, output_tokens=shape.output_tokens)
    per_word = tokens_per_word(client, to.model, " ".join(traces.WORDS * 4))
    return load, traces.sessions(shape, seed=load.seed, tokens_per_word=per_word)


def _fixed(load: Workload, to: Target, streams: int) -> ClientRun:
    report = f"guidellm-{streams}.json"
    argv = guidellm_args.argv(replace(load, concurrency=(streams,)), to, output=report)
    return _guidellm(argv, report, None)


def _guidellm(argv: list[str], report: str, sessions: int | None) -> ClientRun:
    command = (sys.executable, str(BRIDGE), EVENTS, *argv)
    return ClientRun("guidellm", command, ("guidellm", *argv), report, sessions)


def _otel_name(count: int) -> str:
    return f"sessions-{count}.otel.jsonl"


def _otel_run(load: Workload, to: Target, count: int) -> ClientRun:
    report = f"guidellm-{count}.json"
    argv = guidellm_args.argv(load, to, output=report, trace=_otel_name(count))
    return _guidellm(argv, report, count)


def _write_weka(raw: Path, found: list[traces.Session]) -> None:
    directory = raw / WEKA
    directory.mkdir(exist_ok=True)
    for document in traces.weka_documents(found):
        (directory / f"{document['id']}.json").write_text(json.dumps(document), encoding="utf-8")


def _aiperf_run(load: Workload, to: Target, program: str, count: int) -> ClientRun:
    report = f"aiperf-{count}"
    argv = aiperf.argv(load, to, traces=WEKA, output=report, concurrency=count)
    return ClientRun("aiperf", (program, *argv), ("aiperf", *argv), report, count)


def as_dict(run: ClientRun) -> dict[str, Any]:
    """JSON-able form: what ran, as typed, and where it reported."""
    return {"tool": run.tool, "argv": list(run.argv), "report": run.report, "sessions": run.sessions}
