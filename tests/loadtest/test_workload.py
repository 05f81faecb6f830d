from __future__ import annotations

import json
from pathlib import Path

import pytest

from k3ctl.errors import UsageError
from k3ctl.loadtest import workload
from k3ctl.loadtest.workload import Workload

PRESET = """
schema: k3ctl.preset/1
name: mine
summary: a user's own
load: {prompt_tokens: 100, output_tokens: 10, concurrency: [2], duration_s: 5}
"""


@pytest.mark.parametrize("name", workload.names())
def test_every_shipped_preset_loads_and_survives_json(name: str) -> None:
    load = workload.load(name)
    assert load.preset == name
    assert Workload.from_dict(json.loads(json.dumps(load.as_dict()))) == load


def test_a_user_file_is_a_preset(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(PRESET)
    assert workload.load(str(tmp_path / "mine.yaml")).concurrency == (2,)


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (("duration_s: 5", "duration: 5"), "load.duration"),
        (("duration_s: 5", "seed: 1"), "never ends"),
        (("concurrency: [2]", "concurrency: []"), "load.concurrency"),
        (("k3ctl.preset/1", "k3ctl.preset/9"), "schema"),
        (("output_tokens: 10", "output_tokens: 0"), "load.output_tokens"),
    ],
    ids=["unknown-key", "unbounded", "no-concurrency", "other-version", "zero-length"],
)
def test_a_bad_preset_names_the_key(tmp_path: Path, edit: tuple[str, str], expected: str) -> None:
    (tmp_path / "bad.yaml").write_text(PRESET.replace(*edit))
    with pytest.raises(UsageError) as caught:
        workload.load(str(tmp_path / "bad.yaml"))
    assert expected in " ".join(caught.value.reasons)


def test_an_unknown_key_suggests_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(PRESET.replace("duration_s: 5", "duration_s: 5, warmups: 0.1"))
    with pytest.raises(UsageError) as caught:
        workload.load(str(tmp_path / "bad.yaml"))
    assert "did you mean `warmup`?" in caught.value.reasons[0]


def test_an_unknown_preset_suggests_the_nearest_one() -> None:
    with pytest.raises(UsageError) as caught:
        workload.load("8k1")
    assert caught.value.hint == "did you mean `8k1k`?"


def test_overrides_are_recorded_as_deviations() -> None:
    load = workload.override(workload.load("8k1k"), concurrency=(1, 4), duration_s=60.0)
    assert load.concurrency == (1, 4)
    assert load.deviations == ("concurrency 1,4 (preset: 1,4,16)", "duration 60 s (preset: 150 s)")


def test_an_override_that_changes_nothing_is_no_deviation() -> None:
    load = workload.override(workload.load("8k1k"), concurrency=(1, 4, 16), duration_s=150)
    assert load == workload.load("8k1k")


@pytest.mark.parametrize("bad", [{"concurrency": (0,)}, {"duration_s": 0.0}, {"requests": -1}])
def test_limits_must_be_positive(bad: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="must be positive"):
        workload.override(workload.load("smoke"), **bad)  # type: ignore[arg-type]
