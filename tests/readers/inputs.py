"""Every reader of k3ctl with a real input for it: a function that reads a file and uses all that it found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from k3ctl import deployment, output
from k3ctl.canary import judge as canary
from k3ctl.canary import send
from k3ctl.canary.prompts import PROMPTS
from k3ctl.checks import merge
from k3ctl.checks.captures import folder
from k3ctl.checks.merge import Gathered
from k3ctl.checks.report import describe
from k3ctl.commands import triage
from k3ctl.commands.doctor.render import blocks
from k3ctl.commands.runs import as_data
from k3ctl.engine import client, record, rundir
from k3ctl.errors import EngineError, UsageError
from k3ctl.feeds.sources import BenchFeed
from k3ctl.host.codec import encode
from k3ctl.host.types import SCHEMA as HOST_SCHEMA
from k3ctl.host.types import Host, ImexDomain, Probe, Process, Xid
from k3ctl.loadtest import compare, conditions, events, foreign, gate, tokens, view, workload
from k3ctl.output import CommandResult
from k3ctl.planning import actual, detect
from k3ctl.profiles import loader
from k3ctl.rack import record as groups
from k3ctl.server import models, witness
from k3ctl.server.prometheus import PageError, parse
from k3ctl.signals import PREFIX
from k3ctl.telemetry import recording
from k3ctl.telemetry.engines import WANTED, server_sample
from k3ctl.telemetry.reducer import State, reduce
from k3ctl.telemetry.replay import Player
from k3ctl.telemetry.view import build
from k3ctl.verdict import drives, kernels, trace

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"


def profile_file(path: Path) -> None:
    loader.load(str(path))


def preset_file(path: Path) -> None:
    workload.load(str(path))


def run_record(path: Path) -> None:
    directory = path.parent / "run"
    directory.mkdir(exist_ok=True)
    path.replace(directory / "run.json")
    run = rundir.read(directory)
    run.status()
    record.config(run)
    record.profile_texts(run)
    deployment.of_run(run)
    conditions.of_run(run)
    as_data(run)


def group_record(path: Path) -> None:
    group = groups.read(path.parent)
    assert group.hosts


def trace_file(path: Path) -> None:
    reports = [trace.summarize(kernels.read(path))]
    trace.verdict(reports)
    trace.statement(reports)
    json.dumps([trace.as_data(one) for one in reports], allow_nan=False)


def recording_file(path: Path) -> None:
    found = recording.read(path)
    player = Player(found, 1.0)
    player.seek_to(player.length_s)
    build(player.state, player.at, found.deployment)


def event_file(path: Path) -> None:
    for step in events.steps(events.read(path)):
        events.streams(step)
    state = State()
    for event in BenchFeed(path).read():
        state = reduce(state, event)
    build(state, 0.0)


def metrics_page(path: Path) -> None:
    try:
        page = parse(path.read_bytes(), WANTED, required_prefix=PREFIX)
    except PageError:
        return
    server_sample(page)
    witness.counts_of_page(page)
    witness.info_of_page(page)


def witness_table(path: Path) -> None:
    try:
        workers = witness.workers_of_table(json.loads(path.read_bytes()))
    except (ValueError, RecursionError):  # what the client turns into an answer that is none
        return
    for worker in workers:
        witness.by_reason(worker.counts)
        witness.engagement(worker.counts)


def figures(path: Path) -> None:
    actual.parse(actual.read(str(path)), str(path))


def machine_report(path: Path) -> None:
    judged_machines(merge.read([path]))
    detect.given([str(path)])


def capture(path: Path) -> None:
    judged_machines(folder.read_folder(path))


def judged_machines(found: Gathered) -> None:
    """The whole report, printed."""
    report = describe(found)
    output.emit(CommandResult("x/1", report.to_json(), blocks(report), warnings=report.notes), as_json=True)
    output.emit(CommandResult("x/1", {}, blocks(report)), as_json=False)


def foreign_result(path: Path) -> None:
    summary = foreign.judged(path)
    view.findings(summary)
    view.comparison(compare.against_published(summary))
    gate.gate(summary, summary, threshold=0.03)


def engine_log(path: Path) -> None:
    output.emit(triage.triage([path]), as_json=True)


class Server(client.Client):
    """A server that answers everything with the bytes of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__("http://server:1")
        self._body = path.read_bytes()

    def _exchange(self, path: str, data: bytes | None, timeout_s: float) -> client.Answer:
        del path, data, timeout_s
        return client.Answer(200, self._body)


def any_answer(path: Path) -> None:
    """What every question makes of the same answer."""
    server: Any = Server(path)
    asked: list[Callable[[], object]] = [
        lambda: server.canary("m", 1.0), server.load, lambda: models.served(server),
        lambda: models.max_model_len(server, "m"), lambda: tokens.ask_server(server, "m"),
        lambda: witness.pages(server),
        lambda: drives._complete(server, "m", 0, 4),
        lambda: canary.judge(PROMPTS[0], send.ask(server, "m", "x", 8, 1.0), content=True, random_weights=False),
    ]  # fmt: skip
    for ask in asked:
        try:
            ask()
        except (EngineError, UsageError) as error:
            assert error.message.strip()


STEP = {
    "path": "specialized",
    "kind": "decode",
    "mode": "full",
    "reason": "",
    "steps": 3,
    "rows": 3,
    "tokens": 3,
}
WORKER = {
    "schema": "k3.witness/1", "rank": 0, "runtime": "0.1", "vllm": "0.33.0", "known_build": True, "platform": "cuda",
    "decode_backend": "latency_specialized", "max_rows": 64, "query_len": 1, "refused": ["a"], "started_at": 1.0,
    "steps": [STEP],
}  # fmt: skip
TABLE = {"schema": "k3.witness.table/1", "workers": [WORKER]}
LAUNCH = {
    "model": "m", "args": {"port": 1}, "env": {}, "origins": {"port": ["flag", "--port"]},
    "profile": {"name": "p", "file": "p.yaml", "data": {}, "texts": [{"name": "p.yaml", "sha256": "0", "text": "a"}]},
    "gpus": [{"index": 0, "name": "NVIDIA H200", "uuid": "u"}], "versions": {"vllm": "0.33.0"},
}  # fmt: skip
RUN = {
    "schema": rundir.SCHEMA, "id": "x", "profile": "p", "host": "h", "port": 1, "url": "http://h:1", "argv": ["a"],
    "served_model_name": "m", "tokenizer": "t", "env": {"A": "b"}, "started_at": 1.0, "state": "stopped", "pid": 4,
    "pid_started": 5, "findings": [{"at": 1.0, "kind": "stalled", "text": "x", "files": ["y"]}],
    "scratch": ["/tmp/k3-abcdefgh"], "launch": LAUNCH,
}  # fmt: skip
TRAY = json.loads((FIXTURES / "nvml-single-gpu.json").read_text())
HOST = Host(
    TRAY["nodes"][0]["hostname"], collected_at=1.8e9, k3ctl="0.1.0", memory_available_bytes=2**40, memlock_bytes=-1,
    nofile=1048576, shm_bytes=2**36, addresses=("192.0.2.1",), packages={"vllm": "0.33.0"},
    xids=(Xid("00000000:1B:00.0", 48, 7, "python", "text"),), imex_domain=ImexDomain("UP", ()),
    processes=(Process(0, 3117, "VLLM::EngineCore", 2**30, parent=1),), probe=Probe(),
)  # fmt: skip
REPORT = {"data": {"snapshot": TRAY, "hosts": [{"schema": HOST_SCHEMA} | encode(HOST)]}}
GROUP = {
    "schema": groups.SCHEMA, "id": "g", "profile": "p", "started_at": 1.0, "url": "http://h:1", "master_port": 29501,
    "members": [{"host": "a", "rank": 0, "address": "192.0.2.1", "run": "r"}, {"host": "b", "rank": 1}],
}  # fmt: skip
COMPLETION = {
    "choices": [{"text": "a", "finish_reason": "length", "message": {"content": "4", "reasoning": "x"},
                 "logprobs": {"content": [{"token": "4", "logprob": -0.1}]}}],
    "usage": {"prompt_tokens": 8, "completion_tokens": 4}, "count": 3,
}  # fmt: skip
MODELS = {"data": [{"id": "m", "root": "m", "parent": None, "max_model_len": 4096}]}
NO_FILES = {metrics_page, witness_table, run_record, any_answer}
"""What they are given comes from a server, or lies in a directory of its own."""
READERS: dict[str, tuple[Callable[[Path], None], str, bytes]] = {
    "profile": (profile_file, "b300-tp8.yaml", (ROOT / "profiles" / "b300-tp8.yaml").read_bytes()),
    "preset": (
        preset_file,
        "smoke.yaml",
        (ROOT / "k3ctl" / "loadtest" / "presets" / "smoke.yaml").read_bytes(),
    ),
    "agentic preset": (
        preset_file,
        "a.yaml",
        (ROOT / "k3ctl" / "loadtest" / "presets" / "agentic.yaml").read_bytes(),
    ),
    "run.json": (run_record, "run.json", json.dumps(RUN).encode()),
    "group.json": (group_record, "group.json", json.dumps(GROUP).encode()),
    "trace": (trace_file, "t.json", (FIXTURES / "trace-h200-hopper-layers.json").read_bytes()),
    "packed trace": (trace_file, "t.json.gz", (FIXTURES / "trace-h200-window-4-layers.json.gz").read_bytes()),
    "recording": (recording_file, "r.jsonl", (FIXTURES / "recording-cpu-tiny.jsonl").read_bytes()[:60_000]),
    "events": (event_file, "e.jsonl", (FIXTURES / "bench-events-cpu-tiny.jsonl").read_bytes()[:60_000]),
    "client events": (
        event_file,
        "e.jsonl",
        (FIXTURES / "guidellm-events-0.8.1.jsonl").read_bytes()[:60_000],
    ),
    "metrics": (metrics_page, "m.prom", (FIXTURES / "metrics-healthy-c1-k7-al3.84.prom").read_bytes()),
    "witness": (witness_table, "w.json", json.dumps(TABLE).encode()),
    "machine record": (machine_report, "n.json", (FIXTURES / "nvml-gb300-imex-missing.json").read_bytes()),
    "machine report": (machine_report, "r.json", json.dumps(REPORT).encode()),
    "capture of a record": (capture, "n.json", (FIXTURES / "nvml-hgx-b300-fm-down.json").read_bytes()),
    "capture of nvidia-smi": (capture, "q.txt", (FIXTURES / "smi-q-fabric-inprogress.txt").read_bytes()),
    "capture of IMEX": (capture, "i.json", (FIXTURES / "imex-ctl-up-2nodes.json").read_bytes()),
    "capture of collect_env": (capture, "c.txt", (FIXTURES / "collect-env-excerpt-b300.txt").read_bytes()),
    "GuideLLM report": (
        foreign_result,
        "g.json",
        (FIXTURES / "guidellm-result-0.8.1-slim.json").read_bytes(),
    ),
    "aiperf result": (foreign_result, "a.json", (FIXTURES / "aiperf-result-0.13.0.json").read_bytes()),
    "log": (engine_log, "e.log", (FIXTURES / "vllm-log-shm-broadcast-real-hang.txt").read_bytes()),
    "kernel log": (engine_log, "d.log", (FIXTURES / "dmesg-xid79-and-no-xid.txt").read_bytes()),
    "completion": (any_answer, "c.json", json.dumps(COMPLETION).encode()),
    "list of models": (any_answer, "l.json", json.dumps(MODELS).encode()),
    "page of counters": (any_answer, "p.prom", (FIXTURES / "metrics-healthy-c1-k7-al3.84.prom").read_bytes()),
    "figures": (figures, "m.prom", (FIXTURES / "metrics-healthy-c1-k7-al3.84.prom").read_bytes()),
}
