"""Driving a server: nobody else's requests, the server's key."""

from __future__ import annotations

import fcntl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from k3ctl.deployment import Deployment
from k3ctl.verdict import check, drives, profiler
from k3ctl.verdict.evidence import Phase
from tests.verdict.served import drive, phase

RUN = check.Target("http://127.0.0.1:1", "a-run")


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(check.rundir, "find", lambda _: SimpleNamespace(dir=tmp_path))
    monkeypatch.setattr(check.deployment, "of_run", lambda _: Deployment(traces="/t"))
    monkeypatch.setattr(check.models, "served", lambda _: "m")
    monkeypatch.setattr(drives, "warm_up", lambda *_: None)
    monkeypatch.setattr(check, "judge", lambda evidence: evidence)
    return tmp_path


def canary_allowed(run_dir: Path) -> bool:
    """Whether the supervisor of the run would send its own request now."""
    with (run_dir / "traffic.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_no_canary_request_falls_into_a_drive(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def look(*_: Any) -> Phase:
        seen.append(canary_allowed(run_dir))
        return phase(4, drive(4))

    monkeypatch.setattr(drives, "drive", look)
    check.check(RUN)
    assert seen == [False, False]
    assert canary_allowed(run_dir)


@pytest.mark.parametrize(("missed", "sent"), [(0, 1), (1, 2), (2, 3), (9, 3)])
def test_requests_that_did_not_meet_are_sent_again_and_every_drive_is_kept(
    missed: int, sent: int, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one = phase(4, [step for _ in range(4) for step in drive(1)])
    answers = [phase(1, drive(1)), *[one_by_one] * missed, phase(4, drive(4))]
    monkeypatch.setattr(drives, "drive", lambda *_: answers.pop(0))
    kept: Any = check.check(RUN)
    assert [p.rows for p in kept.phases] == [1, *[4] * sent]


def test_no_canary_request_falls_into_a_profiler_window(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def take(*_: Any) -> list[Path]:
        seen.append(canary_allowed(run_dir))
        return []

    monkeypatch.setattr(profiler, "take", take)
    check.take_traces(RUN)
    assert seen == [False]


@pytest.mark.parametrize("trace", [False, True], ids=["counters", "trace"])
def test_the_servers_key_is_taken_from_the_environment(trace: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from k3ctl.commands import verify

    class Stopped(Exception):
        pass

    def stop(*_: Any, api_key: str | None, **__: Any) -> None:
        assert api_key == "a-key"
        raise Stopped

    monkeypatch.setenv("VLLM_API_KEY", "a-key")
    monkeypatch.setattr(check, "check", stop)
    monkeypatch.setattr(check, "take_traces", stop)
    with pytest.raises(Stopped):
        verify.verify(url="http://127.0.0.1:1", trace=trace)


@pytest.mark.parametrize("count", [-1, "48", 4.5, True, None], ids=str)
def test_a_token_count_that_is_none_is_the_servers_error(count: Any) -> None:
    from k3ctl.errors import EngineError
    from k3ctl.verdict import drives

    usage = {"prompt_tokens": 8, "completion_tokens": count}
    client: Any = SimpleNamespace(url="http://h", json=lambda *_, **__: {"usage": usage})
    with pytest.raises(EngineError, match="without a token count"):
        drives._complete(client, "m", 0, 48)


def test_numbers_beyond_a_float_are_read_and_not_believed() -> None:
    from k3ctl.server import witness

    row = {"path": "specialized", "kind": "decode", "mode": "full", "reason": "", "rows": 1, "tokens": 1}
    page = {"rank": float("inf"), "max_rows": 10**400, "steps": [{**row, "steps": 10**400}]}
    (worker,) = witness.workers_of_table({"schema": witness.TABLE_SCHEMA, "workers": [page]})
    assert (worker.rank, worker.max_rows) == (0, 0)
    assert [count.steps for count in worker.counts.values()] == [float("inf")]
