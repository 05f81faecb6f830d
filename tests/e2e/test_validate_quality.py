"""`k3ctl validate quality`: the real lm-evaluation-harness (`make setup-quality`) against the real CPU engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from k3ctl.errors import MachineError
from k3ctl.validate import harness
from tests.e2e.conftest import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
FIXTURES = Path(__file__).parent.parent / "fixtures" / "quality"


@pytest.fixture(scope="module")
def results(server: Server) -> dict[str, Any]:
    try:
        program = harness.find(None)
    except MachineError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    files = {
        name: FIXTURES / f"{name.replace('_', '-')}.jsonl"
        for name in ("gsm8k", "gsm8k_train", "aime25", "mrcr")
    }
    given = {**files, "lm_eval": program, "gsm8k_at_least": 0.9}
    options = [word for name, value in given.items() for word in ("--option", f"{name}={value}")]
    done = server.k3ctl("validate", "quality", "--url", server.url, "--json", *options, timeout=1500)
    assert done.returncode == 1, done.stderr
    return {result["check"]: result for result in json.loads(done.stdout)["data"]["results"]}


def test_every_set_was_asked_and_its_steps_were_on_the_claimed_path(results: dict[str, Any]) -> None:
    counts = {"arithmetic": 12, "needles": 12, "gsm8k": 3, "aime25": 2, "mrcr": 1}
    for name, count in counts.items():
        result = results[f"quality.{name}"]
        assert len(result["evidence"]["scores"][0]["points"]) == count, result["statement"]
        assert result["evidence"]["settings"]["harness_version"] == "0.4.13"
        assert result["interval"]["standing"] == "on the claimed path", result["interval"]["reason"]
        assert result["interval"]["decode_steps"] > 0


def test_random_weights_fail_a_floor_and_say_nothing_without_one(results: dict[str, Any]) -> None:
    assert results["quality.gsm8k"]["outcome"] == "failed"
    assert [score["filter"] for score in results["quality.gsm8k"]["evidence"]["scores"]] == [
        "flexible-extract",
        "strict-match",
    ]
    for name in ("arithmetic", "needles", "aime25", "mrcr"):
        assert results[f"quality.{name}"]["outcome"] == "unknown"
