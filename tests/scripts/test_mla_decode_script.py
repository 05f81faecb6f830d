"""The script for a GPU host: parts that end well are not run again, limits hold, exit codes say what is left."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu" / "mla_decode.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("mla_decode_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mla_decode_script", module)
    spec.loader.exec_module(module)
    return module


def run(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path, commands: dict[str, str], *more: str
) -> int:
    made = [script.Part(name, ("-c", code), 20) for name, code in commands.items()]
    monkeypatch.setattr(script, "parts", lambda log, tests: made)
    monkeypatch.setattr(sys, "argv", ["mla_decode.py", str(out), *more])
    return int(script.main())


def test_a_second_call_goes_on_where_the_first_one_failed(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    once = f"open({str(tmp_path / 'ran')!r}, 'a').write('x')"
    assert run(script, monkeypatch, tmp_path, {"good": once, "bad": "raise SystemExit('why')"}) == 1
    assert json.loads((tmp_path / "parts.json").read_text())["bad"]["code"] == 1
    assert "why" in (tmp_path / "mla.txt").read_text()
    assert run(script, monkeypatch, tmp_path, {"good": once, "bad": "pass"}) == 0
    assert (tmp_path / "ran").read_text() == "x"


def test_a_part_that_takes_too_long_is_stopped_and_the_next_ones_run(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(script, "RESERVE_S", 0.0)
    slow = script.Part("slow", ("-c", "import time; print('began', flush=True); time.sleep(600)"), 3)
    done = script.run_part(slow, 3, tmp_path / "mla.txt", "abc")
    assert done["code"] == 124
    assert run(script, monkeypatch, tmp_path, {"quick": "pass"}) == 0


def test_what_no_time_is_left_for_is_not_run(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run(script, monkeypatch, tmp_path, {"quick": "pass"}, "--limit", "1") == 2
    assert not (tmp_path / "parts.json").exists()


def test_an_unknown_part_is_named(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(script, monkeypatch, tmp_path, {"quick": "pass"}, "--only", "quick,quik")
    assert stopped.value.code == 2
    assert "no part is called quik; there are quick" in capsys.readouterr().err


def test_the_parts_are_all_of_the_gpu_tests_once_and_every_bench(script: ModuleType, tmp_path: Path) -> None:
    names = [part.name for part in script.parts(tmp_path / "log", script.pytest_arguments(tmp_path))]
    assert len(set(names)) == len(names)
    assert {name.partition("-")[0] for name in names} == {"tests", "sweep", "bench"}
