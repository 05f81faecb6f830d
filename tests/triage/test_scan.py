"""From records to incidents: order, grouping, versions, size."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import pytest

from k3ctl.triage import reader
from k3ctl.triage.detectors import all_detectors
from k3ctl.triage.rules import all_rules
from k3ctl.triage.scan import expired, scan, scan_lines


def error(rank: int, second: int, text: str) -> str:
    return f"(Worker_TP{rank} pid={rank}) ERROR 09-20 08:00:{second:02d} [x.py:1] {text}"


def test_the_first_error_is_the_cause_and_not_the_last_traceback():
    report = scan_lines(
        [
            error(2, 1, "Traceback (most recent call last):"),
            error(2, 1, '  File "model.py", line 1, in forward'),
            error(2, 1, "KeyError: 'layers.3'"),
            "(EngineCore pid=9) ERROR 09-20 08:00:02 [core.py:1] EngineCore failed to start.",
            "(APIServer pid=8) RuntimeError: Engine core initialization failed. See root cause above.",
        ]
    )
    assert [(i.rule.id, i.title, i.because) for i in report.incidents] == [
        ("unknown-error", "KeyError: 'layers.3'", ""),
        ("core-init-failed", "the engine core did not start", "unknown-error"),
    ]


def test_a_half_done_installation_is_told_from_an_optional_import():
    optional = "(Worker pid=1) WARNING 11-29 17:29:03 [cpu.py:686] Failed to import from vllm._C_AVX2: " + (
        "ModuleNotFoundError(\"No module named 'vllm._C_AVX2'\")"
    )
    assert scan_lines([optional]).incidents == ()
    report = scan_lines([optional, "ModuleNotFoundError: No module named 'xgrammar'"])
    assert report.incidents[0].rule.id == "package-missing"
    assert "xgrammar" in report.incidents[0].title


def test_interleaved_ranks_keep_their_own_tracebacks():
    frames = [
        error(0, 1, '  File "r.py", line 9, in capture_model'),
        error(1, 1, '  File "r.py", line 3, in forward'),
    ]
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB. GPU 0 of which 1 MiB is free."
    assert scan_lines([*frames, error(1, 1, oom)]).incidents[0].rule.id == "gpu-oom"
    assert scan_lines([*frames, error(0, 1, oom)]).incidents[0].rule.id == "capture-oom"


def test_errors_that_differ_only_in_numbers_are_one_incident():
    report = scan_lines([error(rank, 1, f"ValueError: rank {rank} got 0x{rank:x}f") for rank in range(16)])
    assert len(report.incidents) == 1
    assert (report.incidents[0].count, len(report.incidents[0].who)) == (16, 16)


def test_a_rule_for_another_version_does_not_speak():
    line = error(0, 1, "AttributeError: 'NoneType' object has no attribute 'weight'")
    known = scan_lines(["(APIServer pid=1) INFO 09-20 08:00:00 [a:1] version 0.26.0", line])
    other = scan_lines(["(APIServer pid=1) INFO 09-20 08:00:00 [a:1] version 0.33.0", line])
    assert known.incidents[0].rule.id == "dspark-old-build"
    assert other.incidents[0].rule.id == "unknown-error"
    assert "no attribute 'weight'" in other.incidents[0].title


def test_an_expired_rule_still_speaks_and_says_so():
    report = scan_lines([error(0, 1, "RuntimeError: FlashKDA requires CUDA SM90")])
    assert expired(report, date(2026, 10, 1)) == []
    assert [rule.id for rule in expired(report, date(2031, 1, 1))] == ["kda-prefill-unsupported"]


def test_two_nodes_logs_are_read_as_one_story(tmp_path: Path):
    late, early = tmp_path / "node0.log", tmp_path / "node1.log"
    late.write_text(error(0, 30, "RuntimeError: Gloo connectFullMesh failed with x") + "\n")
    early.write_text(
        "[W920 08:00:05.101 Gloo.cpp:5] Warning: Unable to resolve hostname to a (local) address.\n"
    )
    report = scan([late, early])
    assert report.incidents[0].rule.id == "gloo-loopback"
    assert report.incidents[0].first.file == str(early)
    assert report.incidents[1].because == "gloo-loopback"


def test_warnings_without_progress_are_not_called_a_hang_too_early():
    warning = (
        "(EngineCore pid=2) INFO 09-20 08:{:02d}:05 [s.py:1] No available shared memory broadcast block found"
    )
    few = scan_lines([warning.format(minute) for minute in range(3)])
    many = scan_lines([warning.format(minute) for minute in range(8)])
    over = scan_lines([*(warning.format(m) for m in range(8)), error(0, 59, "ok").replace("ERROR", "INFO")])
    assert few.incidents[0].rule.id == "waiting"
    assert many.incidents[0].rule.id == "hung"
    assert over.incidents == ()


def test_a_progress_bar_is_read_in_its_last_state(tmp_path: Path):
    log = tmp_path / "engine.log"
    bar = "".join(f"Loading safetensors: {k}% Completed | {k}/96 [01:00<05:00, 1s/it]\r" for k in range(40))
    end = "(APIServer pid=1) TimeoutError: Timed out waiting for engine core processes to start. Waited 600s"
    log.write_text(f"{bar}\n{end}\n")
    assert "39/96" in scan([log]).incidents[0].title


def test_line_numbers_are_those_of_the_file_although_most_lines_are_skipped(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(reader, "BLOCK_BYTES", 997)
    log = tmp_path / "engine.log"
    lines = ['INFO: 127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK'] * 500
    lines[321] = error(0, 1, "KeyError: 1")
    lines[399] = error(0, 2, "KeyError: 'b'")
    log.write_text("\n".join(lines))
    report = scan([log])
    assert report.lines == 500
    assert [incident.first.line for incident in report.incidents] == [322, 400]


def test_what_is_no_log_of_an_engine_is_no_all_clear(tmp_path: Path):
    path = tmp_path / "core"
    for content in (bytes(range(256)) * 5000, b"INFO a\nINFO b\n", b"\n"):
        path.write_bytes(content)
        first = scan([path]).first_cause
        assert first is not None and first.rule.id == "no-engine-log"


def test_rule_ids_are_unique_and_every_rule_has_source_dates_and_texts():
    rules = all_rules()
    assert len({rule.id for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.title and rule.cause and rule.action and rule.source
        assert rule.checked < rule.expires
        assert not rule.action.endswith(".")
        assert set(rule.leads_to) <= {other.id for other in rules}


def test_every_detector_names_rules_that_exist():
    known = {rule.id for rule in all_rules()}
    for detector in all_detectors():
        assert set(detector.details()) <= known


@pytest.mark.slow
def test_half_a_gigabyte_is_read_in_bounded_memory(tmp_path: Path, record_property):
    """In a process of its own, so that its peak memory is its own."""
    log = tmp_path / "big.log"
    access = 'INFO:     127.0.0.1:{} - "POST /v1/completions HTTP/1.1" 200 OK\n'
    block = "".join(access.format(40000 + i) for i in range(10000))
    stats = (
        "(APIServer pid=1) INFO 09-20 10:02:00 [l.py:1] Engine 000: "
        "Avg generation throughput: 9.0 tokens/s, Running: 3 reqs\n"
    )
    noise = "".join(error(i % 16, i % 60, f"SomeError: request {i} failed") + "\n" for i in range(200))
    with log.open("w") as file:
        while file.tell() < 500_000_000:
            file.write(block + stats + noise)
        file.write(error(3, 59, "RuntimeError: FlashKDA requires CUDA") + "\n")
    program = (
        "import sys; from pathlib import Path; from k3ctl.triage.scan import scan\n"
        "r = scan([Path(sys.argv[1])])\n"
        "peak = next(x for x in open('/proc/self/status') if x.startswith('VmHWM')).split()[1]\n"
        "print(r.lines, len(r.incidents), r.incidents[-1].rule.id, peak)"
    )
    since = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program, str(log)], capture_output=True, text=True, check=True
    )
    seconds = time.monotonic() - since
    lines, incidents, rule, peak_kib = done.stdout.split()
    record_property("mb_s", round(log.stat().st_size / 1e6 / seconds))
    assert int(lines) > 7_000_000 and int(incidents) == 2 and rule == "kda-prefill-unsupported"
    assert int(peak_kib) < 64 * 1024
    assert log.stat().st_size / 1e6 / seconds > 5
