"""The reference names everything that a result can contain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from k3ctl.loadtest import guards, workload

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "bench.md").read_text(encoding="utf-8")
GUARDS = re.findall(r'GuardFinding\(\s*"([a-z-]+)"', Path(guards.__file__).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(set(GUARDS)))
def test_every_guard_is_explained(name: str) -> None:
    assert f"| `{name}` |" in REFERENCE


@pytest.mark.parametrize("name", workload.names())
def test_every_preset_is_listed_with_its_lengths(name: str) -> None:
    (line,) = [line for line in REFERENCE.splitlines() if line.startswith(f"| `{name}` |")]
    load = workload.load(name)
    if load.sessions is None:
        assert f"{load.output_tokens} |" in line
        assert f"{load.duration_s:g} s" in line


def test_the_thresholds_of_the_page_are_those_of_the_code() -> None:
    assert (guards.OUTPUT_LENGTH_TOLERANCE, guards.PROMPT_LENGTH_TOLERANCE) == (0.03, 0.05)
    assert guards.PROMPT_LENGTH_FREE_TOKENS == 64
    assert (guards.LITTLE_TOLERANCE, guards.COARSE_STEP, guards.COARSE_INTERVAL) == (0.05, 0.02, 0.05)
    assert (guards.ACCEPTANCE_ABOVE_GOLDEN, guards.ACCEPTANCE_COLLAPSE) == (0.15, 1.05)
    assert (guards.CLOCK_JUMP_S, guards.CLIENT_DELAY_SHARE) == (0.5, 0.05)


def test_waivers_name_guards_that_exist() -> None:
    for name in workload.names():
        assert set(workload.load(name).waive) <= set(GUARDS), name
