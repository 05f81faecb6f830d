"""What was recorded is what is replayed, and a damaged file is used as far as it goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3ctl.deployment import Deployment
from k3ctl.errors import UsageError
from k3ctl.server.witness import StepCount, StepKey, WorkerPage
from k3ctl.telemetry import recording, rules
from k3ctl.telemetry.events import (
    BenchReported,
    Event,
    FeedFailed,
    GpusRead,
    IncidentFound,
    MetricsRead,
    StageChanged,
    WitnessRead,
)
from k3ctl.telemetry.gpus import GpuFinding, GpuSample
from k3ctl.telemetry.reducer import reduce_all
from k3ctl.telemetry.view import build
from tests.telemetry.feeding import FIXTURES, URL, fixture_page, read

WORKER = WorkerPage(
    rank=0,
    runtime="0.1.0",
    vllm="0.33.0",
    known_build=True,
    platform="cpu",
    decode_backend="auto",
    max_rows=64,
    query_len=4,
    refused=("no",),
    counts={StepKey("standard", "decode", "eager", "backend-off"): StepCount(3.0, 4.0, 5.0)},
)
OTHERS: list[Event] = [
    FeedFailed(50.0, URL, "metrics", "HTTP 503"),
    WitnessRead(51.0, URL, (WORKER,)),
    GpusRead(
        52.0,
        "node0",
        (GpuSample(0, "NVIDIA H200", throttle=("HW thermal",), ecc_uncorrected=0),),
        (GpuFinding("gpu.lost", "fail", "t", "e", "r", "GPU 0"),),
    ),
    StageChanged(53.0, "run", "weights", "running", 3, 96, "loading"),
    IncidentFound(54.0, "run", "stalled", "fail", "stalled", "restart"),
    BenchReported(55.0, "bench", {"kind": "tick", "ok": 3}),
]


DEPLOYMENT = Deployment(
    profile="b300-tp8", gpu="B300", tensor_parallel_size=8, num_speculative_tokens=7, speculator="dspark"
)


def record(path: Path, events: list[Event]) -> None:
    recorder = recording.Recorder(path, DEPLOYMENT)
    for event in events:
        recorder.write(event)
    recorder.close()


def test_every_kind_of_event_survives_the_round_trip(tmp_path: Path) -> None:
    healthy, stalled = (
        fixture_page("metrics-healthy-c1-k7-al3.84.prom"),
        fixture_page("metrics-stall-t0.prom"),
    )
    pages: list[Event] = [MetricsRead(float(t), URL, healthy if t % 3 else stalled) for t in range(130)]
    events = sorted([*pages, *OTHERS], key=lambda event: event.t)
    record(tmp_path / "r.jsonl", events)
    again = recording.read(tmp_path / "r.jsonl")
    assert list(again.events) == events
    assert again.deployment == DEPLOYMENT
    assert reduce_all(again.events) == reduce_all(events)


def test_a_page_costs_only_what_changed(tmp_path: Path) -> None:
    page = fixture_page("metrics-healthy-c1-k7-al3.84.prom")
    record(tmp_path / "r.jsonl", [MetricsRead(float(t), URL, page) for t in range(59)])
    size = (tmp_path / "r.jsonl").stat().st_size
    record(tmp_path / "one.jsonl", [MetricsRead(0.0, URL, page)])
    assert size < (tmp_path / "one.jsonl").stat().st_size + 59 * 100


def test_a_truncated_recording_plays_up_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    record(path, [read(float(t), generation_tokens_total=t) for t in range(10)])
    path.write_bytes(path.read_bytes()[:-20])
    again = recording.read(path)
    assert len(again.events) == 9
    assert again.skipped_lines == 1


@pytest.mark.parametrize(
    "line", ["{", "[]", "null", '{"kind":"metrics","t":1}', '{"kind":"gpus","t":1,"source":"x","gpus":[{}]}']
)
def test_a_damaged_line_costs_one_event(tmp_path: Path, line: str) -> None:
    path = tmp_path / "r.jsonl"
    record(path, [read(float(t), generation_tokens_total=t) for t in range(5)])
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], line, *lines[3:]]) + "\n")
    again = recording.read(path)
    assert (len(again.events), again.skipped_lines) == (5, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no header"),
        (b"hello\n", "no header"),
        (b'{"schema":"k3ctl.run/1"}\n', "k3ctl.run/1"),
        (b'{"schema":"k3ctl.recording/1"}\n', "holds no event"),
        (b"\x00\xff\x00", "no header"),
    ],
)
def test_a_file_of_another_kind_is_refused_in_one_sentence(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        recording.read(path)


def test_a_missing_file_and_an_unwritable_one_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        recording.read(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="cannot write"):
        recording.Recorder(tmp_path / "no" / "such" / "dir.jsonl")


def test_a_full_disk_ends_the_recording_and_nothing_else() -> None:
    recorder = recording.Recorder(Path("/dev/full"))
    recorder.write(read(1.0, generation_tokens_total=1))
    assert "recording stopped" in recorder.error
    recorder.close()


def test_a_repeated_failure_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    down = [FeedFailed(float(t), "node0", "gpus", "no driver") for t in range(5)]
    back = [GpusRead(6.0, "node0", ()), FeedFailed(7.0, "node0", "gpus", "no driver")]
    gaps = [FeedFailed(8.0 + t, URL, "metrics", "refused") for t in range(3)]
    record(path, [*down, *back, *gaps])
    assert [event.t for event in recording.read(path).events] == [0.0, 6.0, 7.0, 8.0, 9.0, 10.0]


def test_the_recording_of_a_real_cpu_server_reads_as_it_was() -> None:
    """75 s of `k3ctl serve --profile cpu-tiny` (vLLM 0.33.0, CPU) under one to five clients."""
    recorded = recording.read(FIXTURES / "recording-cpu-tiny.jsonl")
    view = rules.judge(build(reduce_all(recorded.events), recorded.end))
    assert (recorded.skipped_lines, view.servers[0].model, view.servers[0].state) == (0, "k3-tiny", "up")
    assert (view.path.backend, view.path.known_build, view.path.platform) == (
        "latency_specialized",
        True,
        "cpu",
    )
    assert view.path.engagement == pytest.approx(0.91, abs=0.02)
    assert view.load.acceptance is not None
    assert view.golden is None
    assert (view.load.draft_tokens, round(view.load.acceptance.length, 1)) == (3, 1.4)
    assert view.load.totals["generation_tokens"] > 2000
    assert {stage.stage for stage in view.stages} >= {"weights", "cache", "ready"}
    assert view.alerts == ()
