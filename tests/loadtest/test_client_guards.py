"""The client's processors, the prefix cache between rungs, and ranks: what was seen, and what the guards say of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from k3ctl.deployment import CPU
from k3ctl.loadtest import clientcpu, compare, guards, prefix, ranks, rows, summary
from k3ctl.loadtest.clientcpu import ClientLoad, CpuSample
from k3ctl.loadtest.guards import GuardEvidence
from k3ctl.loadtest.workload import Sessions
from k3ctl.server.client import Client
from runtime.witness.fingerprint import digest, fingerprint
from runtime.witness.fingerprint import ranges as cpu_ranges
from tests.loadtest import results
from tests.loadtest.results import K3_TARGET
from tests.loadtest.test_guards import GOOD, LOAD


def levels(guard: str, **changes: Any) -> list[str]:
    evidence = replace(GuardEvidence(GOOD, LOAD, K3_TARGET.deployment, None, None), **changes)
    return [finding.level for finding in guards.judge(evidence) if finding.guard == guard]


# the client's processors


def samples(*points: tuple[float, dict[int, float]], busy: float = 0.5) -> list[CpuSample]:
    return [CpuSample(ts, cpu, busy * 4 * ts, 4 * ts) for ts, cpu in points]


def test_the_busiest_process_is_found_and_one_that_came_later_counts_from_then() -> None:
    found = clientcpu.in_window(
        samples((10, {1: 5.0}), (11, {1: 5.2, 2: 100.0}), (12, {1: 5.4, 2: 100.9})), None, None
    )
    assert found is not None
    assert found.busiest == pytest.approx(0.45)
    assert (found.processes, found.host) == (2, pytest.approx(0.5))


def test_only_the_window_counts() -> None:
    """Importing the client keeps a processor busy for half a minute: before the window."""
    seen = samples((0, {1: 0.0}), (30, {1: 30.0}), (31, {1: 30.1}), (61, {1: 33.1}))
    assert (found := clientcpu.in_window(seen, 31, 61)) is not None
    assert found.busiest == pytest.approx(0.1)
    assert clientcpu.in_window(seen, 32, 60) is None
    assert clientcpu.in_window([], None, None) is None


@pytest.mark.parametrize(
    ("load", "gpu", "expected"),
    [
        (None, "B300", []),
        (ClientLoad(0.85, 2, 0.95), "B300", []),
        (ClientLoad(0.86, 2, 0.5), "B300", ["caution"]),
        (ClientLoad(0.1, 2, 0.96), "B300", ["caution"]),
        (ClientLoad(0.9, 2, 0.99), "B300", ["caution", "caution"]),
        (ClientLoad(0.1, 2, 0.99), CPU, []),  # there the engine is what keeps it busy
        (ClientLoad(0.9, 2, None), CPU, ["caution"]),
    ],
)
def test_a_busy_client_is_a_caution(load: ClientLoad | None, gpu: str, expected: list[str]) -> None:
    assert levels("client-cpu", client=load, deployment=replace(K3_TARGET.deployment, gpu=gpu)) == expected


def test_a_spinning_process_of_the_group_is_seen_and_no_other(tmp_path: Path) -> None:
    spin = "import os\nos.getpgid(0)\nwhile True: pass"
    child = subprocess.Popen([sys.executable, "-c", spin], start_new_session=True)
    try:
        record = clientcpu.Recorder(tmp_path)
        first = clientcpu.take(child.pid, time.time())
        assert set(first.processes) == {child.pid}
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            now = clientcpu.take(child.pid, time.time())
            if now.processes[child.pid] - first.processes[child.pid] >= 0.2:
                break
            time.sleep(0.05)
        load = clientcpu.in_window([first, now], None, None)
        assert load is not None and load.busiest > 0
        record(child.pid)
        record(child.pid)  # within the second: not kept
        assert [set(one.processes) for one in clientcpu.read(tmp_path)] == [{child.pid}]
    finally:
        child.kill()
        child.wait()
    assert clientcpu.take(child.pid, time.time()).processes == {}


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    lines = [
        '{"ts": 1, "cpu_s": {"7": 2}, "host": [1, 2]}',
        "{",
        '{"ts": 1}',
        '{"ts": 1, "cpu_s": [], "host": [1, 2]}',
    ]
    (tmp_path / clientcpu.FILE).write_text("\n".join(lines))
    assert clientcpu.read(tmp_path) == [CpuSample(1.0, {7: 2.0}, 1.0, 2.0)]


# GuideLLM's time per token


def test_a_requests_time_per_token_is_one_observation_however_many_tokens_it_has(fixture_json: Any) -> None:
    """GuideLLM counts it once per gap: 19 requests would look like 50 times as many."""
    report = fixture_json("guidellm-result-0.8.1-slim.json")
    first = report["benchmarks"][0]["metrics"]["inter_token_latency_ms"]["successful"]
    assert first["count"] > 10 * 19
    (row, *_) = rows.from_guidellm(report)
    assert row.itl_ms.count == row.completed == 19


# the prefix cache between rungs


class Answers(BaseHTTPRequestHandler):
    """Answers ``POST /reset_prefix_cache`` with what the server's ``plan`` says next."""

    def do_POST(self) -> None:
        status, body = self.server.plan.pop(0) if len(self.server.plan) > 1 else self.server.plan[0]  # type: ignore[attr-defined]
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Any]:
    made = HTTPServer(("127.0.0.1", 0), Answers)
    made.asked = []  # type: ignore[attr-defined]
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.mark.parametrize(
    ("plan", "word", "asked"),
    [
        ([(200, {"success": True})], prefix.EMPTIED, 1),
        ([(404, {"detail": "Not Found"})], prefix.NOT_OFFERED, 1),
        ([(405, {})], prefix.NOT_OFFERED, 1),
        ([(500, {})], prefix.FAILED, 1),
        ([(401, {})], prefix.FAILED, 1),
        ([(200, {"success": False})], prefix.REFUSED, prefix.TRIES),
        ([(200, {"success": False}), (200, {"success": True})], prefix.EMPTIED, 2),
        ([(200, [])], prefix.REFUSED, prefix.TRIES),
        ([(200, {"success": "yes"})], prefix.REFUSED, prefix.TRIES),
    ],
)
def test_what_the_server_says_is_kept(server: Any, plan: list[Any], word: str, asked: int) -> None:
    server.plan = plan
    client = Client(f"http://127.0.0.1:{server.server_port}")
    assert prefix.reset(client, pause_s=0.0) == word
    assert server.asked == ["/reset_prefix_cache"] * asked


def test_a_server_that_is_gone_is_a_failure() -> None:
    assert prefix.reset(Client("http://127.0.0.1:1", timeout_s=1.0), pause_s=0.0) == prefix.FAILED


SESSIONS = replace(LOAD, sessions=Sessions(3, 4, 10, 10, 10, 10, 0.0, 0))


@pytest.mark.parametrize(
    ("load", "first", "word", "expected"),
    [
        (LOAD, False, prefix.NOT_OFFERED, []),  # every prompt is unique
        (LOAD, True, prefix.REFUSED, ["caution"]),
        (LOAD, True, prefix.FAILED, []),  # a server that answers otherwise offers nothing
        (SESSIONS, False, prefix.FAILED, ["caution"]),
        (SESSIONS, True, prefix.NOT_OFFERED, []),
        (SESSIONS, False, prefix.NOT_OFFERED, ["caution"]),
        (SESSIONS, False, None, ["caution"]),
        (SESSIONS, False, prefix.EMPTIED, []),
        (SESSIONS, False, prefix.OFF, []),
        (SESSIONS, False, prefix.REFUSED, ["caution"]),
    ],
)
def test_sessions_that_repeat_need_an_empty_cache(
    load: Any, first: bool, word: str | None, expected: list[str]
) -> None:
    assert levels("prefix-reset", workload=load, first_rung=first, prefix_reset=word) == expected


@pytest.mark.parametrize("repeats", [True, False])
def test_rows_with_and_without_an_emptied_cache_are_not_compared_where_prompts_repeat(
    repeats: bool, tmp_path: Path
) -> None:
    def made(name: str, word: str | None) -> dict[str, Any]:
        raw = results.make(tmp_path / name) / "raw"
        outcome = json.loads((raw / "outcome.json").read_text())
        (raw / "outcome.json").write_text(json.dumps({**outcome, "prefix_resets": [word] if word else []}))
        found = summary.summarize(raw)
        found["conditions"]["load"]["prefix_tokens"] = 100 if repeats else None
        return found

    def reasons(ours: str | None, theirs: str | None) -> bool:
        (pair,) = compare.against_summary(
            made(f"a{ours}{theirs}", ours), made(f"b{ours}{theirs}", theirs), source="s", unit="output_tok_s"
        )
        return any("prefix cache before the rung" in reason for reason in pair.reasons)

    assert not reasons(prefix.EMPTIED, prefix.EMPTIED)
    assert reasons(prefix.EMPTIED, prefix.NOT_OFFERED) == repeats
    assert reasons(prefix.EMPTIED, None) == repeats


# ranks


def page(rank: int, workers: int = 2, **marks: Any) -> dict[str, Any]:
    own = {"host": f"h{rank}", "cpus": f"{rank}", "torch": "2.14.0", "env": {"NCCL_DEBUG": "aa"}} | marks
    return {"rank": rank, "workers": workers, "vllm": "0.33.0", "runtime": "0.1.0", "fingerprint": own}


def table(*pages: dict[str, Any]) -> dict[str, Any]:
    return {"schema": "k3.witness.table/1", "workers": list(pages)}


def test_what_differs_by_nature_is_no_difference() -> None:
    told = ranks.of_table(table(page(0), page(1)))
    assert told is not None
    assert (told["differ"], told["missing"]) == ([], [])
    assert [one["host"] for one in told["ranks"]] == ["h0", "h1"]


@pytest.mark.parametrize(
    ("marks", "line"),
    [
        ({"torch": "2.13.0"}, "torch: 2.14.0 on rank 0, 2.13.0 on rank 1"),
        ({"env": {"NCCL_DEBUG": "bb"}}, "env.NCCL_DEBUG: aa on rank 0, bb on rank 1"),
        ({"env": {}}, "env.NCCL_DEBUG: aa on rank 0, not set on rank 1"),
        ({"gpu": "NVIDIA H20"}, "gpu: not set on rank 0, NVIDIA H20 on rank 1"),
        ({"anything_new": 1}, "anything_new: not set on rank 0, 1 on rank 1"),
    ],
)
def test_every_other_mark_is_compared_also_one_that_nobody_has_thought_of(
    marks: dict[str, Any], line: str
) -> None:
    told = ranks.of_table(table(page(0), page(1, **marks)))
    assert told is not None
    assert told["differ"] == [line]
    assert levels("ranks", ranks_differ=tuple(told["differ"])) == ["caution"]


def test_many_ranks_are_told_in_groups() -> None:
    pages = [page(rank, 8, torch="2.13.0" if rank in (3, 7) else "2.14.0") for rank in range(8)]
    told = ranks.of_table(table(*pages))
    assert told is not None
    assert told["differ"] == ["torch: 2.14.0 on ranks 0, 1, 2, 4, 5, 6, 2.13.0 on ranks 3, 7"]


def test_a_rank_that_says_nothing_is_missing_and_not_alike() -> None:
    silent = {"rank": 1, "workers": 3}
    told = ranks.of_table(table(page(0, 3), silent))
    assert told is not None
    assert told["missing"] == ["rank 2 has no page", "rank 1 states no fingerprint"]
    assert ranks.of_table(None) is None
    assert ranks.of_table({"workers": "x"}) is None
    assert levels("ranks") == []


def test_a_workers_fingerprint_names_itself_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "planted-secret")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("VLLM_HOST_IP", "10.0.0.1")
    marks = fingerprint()
    assert "planted-secret" not in json.dumps(marks)
    assert marks["env"]["NCCL_DEBUG"] == digest("INFO")
    assert not {"CUDA_VISIBLE_DEVICES", "VLLM_HOST_IP", "VLLM_API_KEY"} & set(marks["env"])
    assert marks["cpu_count"] == len(os.sched_getaffinity(0))
    before = fingerprint()
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    assert fingerprint()["env"]["NCCL_DEBUG"] != before["env"]["NCCL_DEBUG"]


def test_processors_are_told_as_ranges() -> None:
    assert cpu_ranges([0, 1, 2, 3, 8, 10, 11]) == "0-3,8,10-11"
    assert cpu_ranges([]) == ""
