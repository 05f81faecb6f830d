"""Every input of the second round reaches its verdict through the command line (`tests/fixtures/round2/cases.yaml`)."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.in_process import k3ctl

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


AS_A_PROCESS = {next(case.id for case in CASES if case.how == how) for how in CHECK.HOWS} | {
    case.id for case in CASES if case.megabytes
}
"""One of each kind, and what is large; the others' answers need no Python start of their own."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_an_input_reaches_its_verdict(case: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if case.id not in AS_A_PROCESS:
        assert CHECK.judge(case, answered(case, monkeypatch, tmp_path)) == []
        return
    program = shutil.which(str(Path(sys.executable).parent / "k3ctl"))
    assert program, "the environment of the tests has no k3ctl"
    assert CHECK.judge(case, CHECK.execute(case, program)) == []


def answered(case: Any, monkeypatch: pytest.MonkeyPatch, room: Path) -> Any:
    """The outcome of the same command in this process, in a directory and a home of its own."""
    for name in os.environ:
        if name.startswith(("K3", "VLLM_", "XDG_", "CUDA_", "NCCL_", "HF_")):
            monkeypatch.delenv(name)
    for name, value in {"HOME": str(room), "COLUMNS": "500", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(room)
    began = time.monotonic()
    with CHECK._metrics(case) as url:
        words = [*CHECK._arguments(case, CHECK._inputs(case, room), url), *(["--json"] if case.json else [])]
        done = k3ctl(*words)
    text = CHECK.tidy(f"{done.stdout}\n{done.stderr}")
    return CHECK.Outcome(done.returncode, text, done.stderr, time.monotonic() - began)


def test_no_case_passes_on_an_empty_or_generic_answer() -> None:
    assert len(CASES) == 42
    assert [fault for case in CASES for fault in CHECK.passable(case)] == []
