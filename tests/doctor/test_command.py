"""``k3ctl doctor`` as a user runs it."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

FIXTURES = Path(__file__).parent.parent / "fixtures"


def k3ctl(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "k3ctl", *args], capture_output=True, text=True, check=False)


def test_a_machine_without_a_driver_is_told_so_in_one_line_and_what_runs() -> None:
    done = k3ctl("doctor")
    assert done.returncode == 0
    assert "No NVIDIA driver" in done.stdout
    assert "can run here: cpu-tiny" in done.stdout


def test_doctor_without_a_gpu_answers_within_a_second() -> None:
    # processor seconds, not the wall clock: the machine that runs the tests may be busy
    assert min(_processor_seconds() for _ in range(5)) < 1.0


def _processor_seconds() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    k3ctl("doctor")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_json_holds_the_snapshot_that_merge_reads_back(tmp_path: Path) -> None:
    done = k3ctl("doctor", "--json")
    data = json.loads(done.stdout)
    assert data["schema"] == "k3ctl.doctor/1"
    assert data["data"]["snapshot"]["schema"] == "k3ctl.nvml/1"
    saved = tmp_path / "node.json"
    saved.write_text(done.stdout, encoding="utf-8")
    merged = json.loads(k3ctl("doctor", "merge", str(saved), "--json").stdout)
    assert merged["data"]["findings"] == data["data"]["findings"]


def test_a_failed_check_exits_with_1() -> None:
    assert k3ctl("doctor", "merge", str(FIXTURES / "nvml-gb300-two-cliques.json")).returncode == 1


def test_an_unknown_rule_is_a_usage_error_with_the_nearest_name() -> None:
    done = k3ctl("doctor", "--explain", "fabric.statu")
    assert done.returncode == 2
    assert "fabric.status" in done.stderr
