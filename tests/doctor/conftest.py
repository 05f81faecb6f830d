from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from k3ctl.gpus import Snapshot, from_json

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture
def load() -> Callable[[str], Snapshot]:
    """A saved snapshot by the middle of its file name: ``hgx-b300``."""

    def read(name: str) -> Snapshot:
        path = FIXTURES / f"nvml-{name}.json"
        return from_json(json.loads(path.read_text(encoding="utf-8")))[0]

    return read
