"""What belongs to a run and is taken away with it, and what never is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from engine_helpers import until

from k3ctl.engine import procs
from k3ctl.engine.territory import Territory

FAMILY = """
import os, subprocess, sys, time
child = "import os, sys, time; {leave}; open(sys.argv[1], 'a').write(f'{os.getpid()} '); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child.replace("{leave}", "os.setsid()"), sys.argv[1]])
subprocess.Popen([sys.executable, "-c", child.replace("{leave}", "os.setpgid(0, 0)"), sys.argv[1]])
time.sleep(600)
"""


@pytest.fixture
def family(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A session leader, one child that left the session and one that left the group only."""
    pids = tmp_path / "pids"
    pids.touch()
    leader = subprocess.Popen([sys.executable, "-c", FAMILY, str(pids)], start_new_session=True)
    until(lambda: len(pids.read_text().split()) == 2)
    children = [int(pid) for pid in pids.read_text().split()]
    yield leader, children
    for pid in [leader.pid, *children]:
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
    leader.wait()


def test_a_descendant_that_left_the_session_belongs_to_the_run_and_ends_with_it(family, tmp_path):
    leader, children = family
    stranger = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    try:
        territory = Territory(leader.pid, tmp_path / "segments")
        sessions = {procs.stat(pid).session for pid in children}
        assert len(sessions) == 2, "one of the two is outside"
        assert {p.pid for p in territory.members()} == {leader.pid, *children}
        territory.clear(grace_s=5)
        until(lambda: all(procs.started_at(pid) is None for pid in [leader.pid, *children]))
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory where run scratch would lie: the machine's temporary one."""
    with tempfile.TemporaryDirectory(prefix="precious-") as path:
        yield Path(path)


@pytest.mark.parametrize(
    "named",
    [
        "{place}",
        "{place}/",
        "{place}/.",
        "{place}/k3-x/..",
        "{place}/notes",
        "{place}/k3-link",
        "/dev/shm/{name}",
    ],
)
def test_a_directory_that_is_no_scratch_of_a_run_stays_whatever_the_record_says(named, place, tmp_path):
    (place / "notes").mkdir()
    (place / "notes" / "thesis").write_text("years of work")
    (place / "k3-x").mkdir()
    (place / "k3-link").symlink_to(place / "notes")
    nobody = 2**22  # beyond pid_max: no session of this number
    Territory(nobody, tmp_path / "segments", [named.format(place=place, name=place.name)]).clear()
    assert (place / "notes" / "thesis").read_text() == "years of work"


def test_scratch_of_the_run_goes(tmp_path):
    scratch = Path(tempfile.mkdtemp(prefix="k3-"))
    (scratch / "socket").touch()
    Territory(2**22, tmp_path / "segments", [str(scratch)]).clear()
    assert not scratch.exists()


@pytest.mark.parametrize("name", ["{file}", "../../{file}", "../..{file}"])
def test_a_segment_record_that_names_a_file_elsewhere_removes_nothing(name, tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("years of work")
    (tmp_path / "segments").write_text(name.format(file=mine) + "\n")
    Territory(2**22, tmp_path / "segments").clear()
    assert mine.exists()
