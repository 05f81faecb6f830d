"""What is kept in the state directory, with the modes that docs/reference/security.md states."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest
from engine_helpers import NOTHING, tiny

from k3ctl.engine import command, launch, rundir, stacks
from k3ctl.host.types import Active, Triad
from k3ctl.machine import measured
from k3ctl.rack import lead
from k3ctl.rack import record as groups
from runtime.witness.counter import Witness

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "security.md"
PLACES = {"<id>": "[^/]+", "<n>": "[0-9]+", "<file>": "[^/]+"}


def stated() -> dict[str, int]:
    """Path below the state directory, as a pattern → mode."""
    part = PAGE.read_text().partition("## What is stored where\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| `([^`]+)` \| (0[0-7]{3}) \|", part, re.M)
    rows = {}
    for path, mode in found:
        pattern = re.escape(path)
        for place, what in PLACES.items():
            pattern = pattern.replace(re.escape(place), what)
        rows[pattern] = int(mode, 8)
    return rows


@pytest.mark.parametrize("mask", [0o022, 0o000], ids=["usual mask", "no mask"])
def test_everything_that_is_kept_is_a_row_of_the_page_with_its_mode(
    mask: int, fake_python, leftovers, state_dir: Path
) -> None:
    before = os.umask(mask)
    try:
        with launch.start(tiny(), port=0) as engine, rundir.quiet(engine.run_dir):
            run = engine.run
            Witness({"rank": 3}, run.witness_dir).publish()
            command.secret({}, rundir.state_root() / "peers.secret")
            groups.create(groups.Group("g", "p", 1.0, (groups.Member("h", 0),)), "secret")
            group = groups.update(groups.root() / "g", state="ready")
            lead.keep_log(group, "h", "x")
            measured.keep(Active(triads=(Triad(0, gb_s=4000.0),)))
            os.umask(0o077)  # the supervisor's
            stacks.save(run.dir, [], str(fake_python), "stalled")
            os.umask(mask)
            seen = {path: stat.S_IMODE(path.lstat().st_mode) for path in rundir.state_root().rglob("*")}
    finally:
        os.umask(before)
    assert leftovers() == NOTHING
    rows, met, wrong = stated(), set(), {}
    for path, mode in seen.items():
        name = path.relative_to(rundir.state_root()).as_posix()
        row = next((row for row in rows if re.fullmatch(row, name)), None)
        if row is None and "/evidence/" in name:
            assert mode == (0o700 if path.is_dir() else 0o600), name
        elif row is None or rows[row] != mode:
            wrong[name] = oct(mode)
        else:
            met.add(row)
    assert wrong == {}, "no row of the page, or another mode"
    assert sorted(row for row in rows if row not in met) == [row for row in rows if "segments" in row]
