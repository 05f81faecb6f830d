"""Every input of the second round reaches its verdict through the command line (`tests/fixtures/round2/cases.yaml`)."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROUND2 = Path(__file__).parents[1] / "fixtures" / "round2"


def _checker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("round2_check", ROUND2 / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


CHECK = _checker()
CASES = CHECK.load(ROUND2 / "cases.yaml")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_an_input_reaches_its_verdict(case: object) -> None:
    program = shutil.which(str(Path(sys.executable).parent / "k3ctl"))
    assert program, "the environment of the tests has no k3ctl"
    assert CHECK.judge(case, CHECK.execute(case, program)) == []


def test_no_case_passes_on_an_empty_or_generic_answer() -> None:
    assert len(CASES) == 42
    assert [fault for case in CASES for fault in CHECK.passable(case)] == []
