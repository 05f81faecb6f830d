"""The table of faults in the documentation names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from engine_helpers import ROOT

PAGE = ROOT / "docs" / "reference" / "faults.md"
FILES = [*ROOT.glob("tests/engine/test_*.py"), *ROOT.glob("tests/runtime/test_*.py")]
DEFINED = {
    name for file in FILES for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.M)
}
ROWS = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "`test" in line]


def test_the_table_is_found():
    assert len(ROWS) >= 15


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip()[:40] for row in ROWS])
def test_every_test_that_a_row_names_exists(row):
    for name in re.findall(r"`((?:test_|…_)\w+…?|tests/[\w/.]+)`", row):
        if name.startswith("tests/"):
            assert Path(ROOT / name).is_file(), name
        else:
            begins, part = not name.startswith("…"), name.strip("…")
            assert any(test.startswith(part) if begins else part in test for test in DEFINED), name
