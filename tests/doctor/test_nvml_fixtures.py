"""Every saved snapshot reaches the verdict that its author wrote into it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from k3ctl.checks import evaluate, verdict
from k3ctl.gpus import from_json

FIXTURES = Path(__file__).parent.parent / "fixtures"
SNAPSHOTS = sorted(p for p in FIXTURES.glob("nvml-*.json") if p.name != "nvml-schema.json")


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.name)
def test_a_snapshot_reaches_its_expected_verdict(path: Path) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    snapshot, notes = from_json(data, source=path.name)
    expected = dict(data["meta"]["expect"])
    findings = expected.pop("findings")
    answer = verdict(snapshot).to_json()

    assert notes == []
    assert {key: answer[key] for key in expected} == expected
    assert {finding.id for finding in evaluate(snapshot)} == set(findings)


def test_all_snapshot_fixtures_are_here() -> None:
    assert len(SNAPSHOTS) == 30
