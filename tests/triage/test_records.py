"""Prefixes of the engine's log, across versions and libraries."""

from __future__ import annotations

import pytest

from k3ctl.triage.records import parse

LINES = {
    "vllm-0.33": (
        "(Worker_TP3 pid=44) ERROR 09-20 08:01:09 [multiproc_executor.py:1020] ValueError: x",
        ("Worker_TP3", 3, "ERROR", "ValueError: x"),
    ),
    "vllm-0.33-all-groups": (
        "(Worker_DP1_PP0_TP7_EP9 pid=4) WARNING 09-20 08:01:09 [a.py:1] y",
        ("Worker_DP1_PP0_TP7_EP9", 7, "WARNING", "y"),
    ),
    "vllm-0.27-bare": ("INFO 09-20 08:00:01 [api_server.py:12] hello", ("", None, "INFO", "hello")),
    "vllm-older-rank": (
        "(VllmWorker rank=5 pid=77) ERROR 09-20 08:00:01 [a.py:1] boom",
        ("VllmWorker", 5, "ERROR", "boom"),
    ),
    "vllm-0.27-core": (
        "(EngineCore_DP0 pid=9) INFO 09-20 08:00:01 [c.py:1] z",
        ("EngineCore_DP0", 0, "INFO", "z"),
    ),
    "coloured": (
        "\x1b[1;36m(APIServer pid=1)\x1b[0;0m ERROR 09-20 08:00:02 [a.py:1] OSError: y",
        ("APIServer", None, "ERROR", "OSError: y"),
    ),
    "prefix-without-level": (
        "(EngineCore pid=2) RuntimeError: bad",
        ("EngineCore", None, "ERROR", "RuntimeError: bad"),
    ),
    "torch-warning": ("[W920 08:00:55.101 Gloo.cpp:516] Warning: a", ("", None, "WARNING", "Warning: a")),
    "torch-python": ("W1129 17:28:04.289000 22413 torch/x.py:53] b", ("", None, "WARNING", "b")),
    "torch-rank-error": ("[rank3]:[E920 08:00:55.101 Nccl.cpp:5] dead", ("rank 3", 3, "ERROR", "dead")),
    "torchrun-traceback": ("[rank1]: ValueError: q", ("rank 1", 1, "ERROR", "ValueError: q")),
    "nccl": (
        "gpu-a:50:51 [2] misc/shm.cc:72 NCCL WARN Error: no room",
        ("gpu-a:50", 2, "WARNING", "Error: no room"),
    ),
    "kernel": ("[ 812.001] NVRM: Xid (PCI:0008): 79", ("kernel", None, "ERROR", "NVRM: Xid (PCI:0008): 79")),
    "uvicorn": (
        "INFO:     Application startup complete.",
        ("", None, "", "INFO:     Application startup complete."),
    ),
    "last-line-of-a-traceback": (
        "torch.OutOfMemoryError: no",
        ("", None, "ERROR", "torch.OutOfMemoryError: no"),
    ),
}


@pytest.mark.parametrize("shape", LINES)
def test_a_prefix_gives_process_rank_level_and_text(shape):
    line, expected = LINES[shape]
    record = parse(line)
    assert record is not None
    assert (record.who, record.rank, record.level, record.text) == expected


@pytest.mark.parametrize("line", ["", "   ", "# df -h /cache -> 1.4T", "\x1b[0m"])
def test_empty_lines_and_a_readers_comments_are_no_records(line):
    assert parse(line) is None


def test_times_compare_within_a_log():
    early, late = parse("INFO 09-20 08:00:01 [a:1] x"), parse("INFO 10-01 00:00:00 [a:1] x")
    assert early is not None and late is not None
    assert early.seconds is not None and late.seconds is not None
    assert early.seconds < late.seconds
