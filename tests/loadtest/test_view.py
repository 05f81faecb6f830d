from __future__ import annotations

from pathlib import Path

import pytest

from k3ctl.loadtest import summary, view
from tests.loadtest import results


@pytest.mark.parametrize("columns", [view.THROUGHPUT, view.LATENCY], ids=["throughput", "latency"])
def test_each_table_fits_a_terminal_of_eighty_columns(tmp_path: Path, columns: tuple[str, ...]) -> None:
    report = "guidellm-8k1k-blogshape-c1-c4-c16.json"
    found = summary.summarize(results.make(tmp_path / "r", report, concurrency=(1, 4, 16)) / "raw")
    for row in found["rows"]:
        path = {"specialized": 123456, "decode_and_mixed": 123456, "decode_share": 1.0}
        row["server"] = {"acceptance_length": 3.84, "path": path}
    names, rows = view.table(found, columns)
    widths = [max(len(cell) for cell in column) for column in zip(names, *rows, strict=True)]
    assert sum(widths) + 2 * len(widths) <= 80 - 2
