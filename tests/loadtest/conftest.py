"""Shared pieces of the load tests: fixture files, a target, judged rows, a mock server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k3ctl.loadtest import rows, workload
from k3ctl.loadtest.judged import judge_row
from tests.loadtest import byte_tokenizer, mock_server
from tests.loadtest.results import FIXTURES, K3_TARGET


@pytest.fixture
def fixture_json() -> Any:
    """Load a JSON fixture by file name."""
    return lambda name: json.loads((FIXTURES / name).read_text(encoding="utf-8"))


@pytest.fixture
def judged(fixture_json: Any) -> Any:
    """The summary rows of a GuideLLM report fixture, judged as the 8k1k workload."""

    def judge(name: str) -> list[dict[str, Any]]:
        load = workload.load("8k1k")
        return [judge_row(row, load, K3_TARGET) for row in rows.from_guidellm(fixture_json(name))]

    return judge


@pytest.fixture
def findings() -> Any:
    """The texts of one guard in a judged row."""
    return lambda row, guard: [f["text"] for f in row["findings"] if f["guard"] == guard]


@pytest.fixture
def mock() -> Iterator[mock_server.Server]:
    """A streaming mock server."""
    with mock_server.running() as server:
        yield server


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A byte-level tokenizer directory."""
    return byte_tokenizer.write(tmp_path / "tokenizer")
