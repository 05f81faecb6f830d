"""The engine's log is bounded, and is read as if it were one file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_helpers import NOTHING, tiny, until

from k3ctl import cli
from k3ctl.engine import launch, logs, stacks
from k3ctl.engine.logs import LogFollower
from k3ctl.engine.pump import LogPump
from k3ctl.triage import scan

PART = 1000


class Printing:
    """An engine's output: what is printed here, the pump has written on return."""

    def __init__(self, log: Path) -> None:
        reading, self._writing = os.pipe()
        self.pump = LogPump(reading, log, PART)

    def line(self, text: str) -> None:
        os.write(self._writing, text.encode() + b"\n")
        assert self.pump.copy()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "engine.log"


@pytest.fixture
def out(log: Path) -> Iterator[Printing]:
    printing = Printing(log)
    yield printing
    printing.pump.close()


def numbers(log: Path) -> list[int]:
    return [int(path.name.split(".")[1]) for path in logs.parts(log)[:-1]]


def test_a_long_log_keeps_its_first_part_and_the_newest_ones(log, out):
    for i in range(400):
        out.line(f"line {i:04} {'x' * 88}")
    assert numbers(log) == [1, 33, 34, 35, 36]
    assert sum(path.stat().st_size for path in logs.parts(log)) <= (2 + logs.NEWEST) * PART
    lines = [line for path in logs.parts(log) for line in path.read_text().splitlines()]
    assert lines[0].startswith("line 0000") and lines[-1].startswith("line 0399")
    assert all(len(line) == 98 for line in lines), "parts end with whole lines"


def test_a_line_longer_than_a_part_is_kept(log, out):
    out.line("y" * 5000)
    out.line("after")
    text = "".join(path.read_text() for path in logs.parts(log))
    assert text == "y" * 5000 + "\nafter\n"


def test_a_follower_misses_no_line_when_the_log_is_rotated_under_it(log, out):
    follower = LogFollower(log)
    seen: list[str] = []
    for i in range(100):
        out.line(f"line {i:04} {'x' * 60}")
        if i % 7 == 0:
            seen += follower.lines()
    seen += follower.lines()
    assert [int(line.split()[1]) for line in seen] == list(range(100))


def test_a_follower_that_was_overtaken_goes_on_with_the_oldest_part_that_is_left(log, out):
    out.line("first")
    follower = LogFollower(log)
    assert list(follower.lines()) == ["first"]
    for i in range(400):
        out.line(f"line {i:04} {'x' * 88}")
    seen = [line.split()[1] for line in follower.lines()]
    assert seen[0] == "0000" and seen[-1] == "0399" and len(seen) < 70


def test_a_follower_from_the_end_of_a_rotated_log_shows_what_comes(log, out):
    for i in range(30):
        out.line(f"line {i:04} {'x' * 88}")
    follower = LogFollower(log, from_end=True)
    assert list(follower.lines()) == []
    for i in range(30, 50):
        out.line(f"line {i:04} {'x' * 88}")
    assert [int(line.split()[1]) for line in follower.lines()] == list(range(30, 50))


def test_a_follower_of_a_removed_log_is_quiet(log, out):
    follower = LogFollower(log)
    for i in range(30):
        out.line(f"line {i:04} {'x' * 88}")
    assert len(list(follower.lines())) == 30
    for path in logs.parts(log):
        path.unlink()
    assert list(follower.lines()) == []


def test_the_tail_crosses_the_border_of_parts(log, out, tmp_path):
    for i in range(12):
        out.line(f"line {i:04} {'x' * 88}")
    tail = logs.tail(log, 600).decode().splitlines()
    assert len(logs.parts(log)) == 2
    assert [line.split()[1] for line in tail[1:]] == ["0006", "0007", "0008", "0009", "0010", "0011"]
    (saved,) = stacks.save(tmp_path, [], "python", "stalled")
    assert Path(saved).read_text().splitlines()[-1].startswith("line 0011")


def test_triage_reads_the_parts_as_one_story(log, out):
    """The cause is in the first part with a time; what follows it stands in later parts, partly without one."""
    stamp = "(EngineCore pid=7) {level} 11-29 17:28:{second:02} [core.py:1] "
    out.line("(APIServer pid=6) INFO 11-29 17:28:00 [startup.py:1] version 0.33.0")
    out.line(stamp.format(level="ERROR", second=1) + "ValueError: No available memory for the cache blocks.")
    for i in range(20):
        out.line(stamp.format(level="INFO", second=2) + f"{i} " + "x" * 80)
    out.line("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}")
    report = scan.scan(logs.parts(log), one_log=True)
    assert len(report.files) >= 2 and report.vllm == "0.33.0"
    assert report.first_cause is not None and report.first_cause.rule.id == "no-cache-memory"
    assert report.lines == 23


def test_a_log_whose_directory_is_removed_costs_the_log_and_nothing_else(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    printing = Printing(run / "engine.log")
    printing.line("one")
    shutil.rmtree(run)
    for i in range(30):
        printing.line(f"line {i:04} {'x' * 88}")
    printing.pump.close()
    assert not run.exists()


def test_a_served_engine_that_talks_much_is_bounded_and_its_log_is_read_as_one(
    fake_python, leftovers, monkeypatch, capsys
):
    monkeypatch.setenv("FAKE_LOG_MB", "9")
    with launch.start(tiny(), port=0, timing={"log_part_bytes": 1 << 20}) as engine:
        log = engine.run.engine_log
        until(lambda: len(numbers(log)) == 1 + logs.NEWEST and "9." in logs.parts(log)[-2].name)
        assert cli.main(["logs", "-n", "1030", engine.id]) == 0
        assert capsys.readouterr().out.count("x" * 1023 + "\n") >= 1024, "over the border of parts"
        assert cli.main(["triage", "--run", engine.id, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["data"]
        assert told["vllm"] == "0.33.0" and len(told["files"]) == 2 + logs.NEWEST
    assert leftovers() == NOTHING
