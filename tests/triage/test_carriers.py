"""Whatever carried a log, it tells the same: every log fixture under every carrier."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3ctl.triage import carriers
from k3ctl.triage.records import parse
from k3ctl.triage.scan import Report, scan
from tests.triage.carried import CARRIERS, LABELS_WITH_RANK, carried

FIXTURES = Path(__file__).parents[1] / "fixtures"
KINDS = (
    "vllm-log-*",
    "nccl-log-*",
    "cuda-log-*",
    "nvml-log-*",
    "dmesg-*",
    "round2/[tul]*.log",
    "round2/*/*.log",
)
LOGS = sorted(path.relative_to(FIXTURES).as_posix() for kind in KINDS for path in FIXTURES.glob(kind))
HAVE_A_CARRIER = ("t-srun-label", "u-stall-compose", "u-unknown-kubectl")


def told(report: Report) -> list[tuple]:
    """All that must not depend on the carrier."""
    return [
        (i.rule.id, i.because, i.first.line, i.last.line, i.count, i.title, i.cause, i.action)
        for i in report.incidents
    ]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_every_log_tells_the_same_under_every_carrier(carrier, tmp_path):
    wrong = {}
    for name in LOGS:
        lines = (FIXTURES / name).read_text(errors="replace").splitlines()
        plain, wrapped = tmp_path / "plain.log", tmp_path / "wrapped.log"
        plain.write_text("\n".join(lines))
        wrapped.write_text("\n".join(carried(carrier, lines)), newline="")
        before, after = scan([plain]), scan([wrapped])
        wrong[name] = [
            (one, other) for one, other in zip(told(before), told(after), strict=False) if one != other
        ]
        for one, other in zip(before.incidents, after.incidents, strict=False):
            wrong[name] += [] if one.who <= other.who and one.ranks <= other.ranks else [(one.who, other.who)]
        if not wrong[name] and len(before.incidents) == len(after.incidents) and before.lines == after.lines:
            del wrong[name]
    assert wrong == {}


@pytest.mark.parametrize("carrier", sorted(LABELS_WITH_RANK))
def test_the_rank_of_a_label_is_kept_where_the_line_names_none(carrier):
    lines = carried(
        carrier, ["hello"] * 3 + ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB"]
    )
    record = parse(lines[3])
    assert record is not None and (record.rank, record.who) == (3, "rank 3")
    own = parse(carried(carrier, ["x"] * 3 + ["(Worker_TP5 pid=9) ERROR 09-20 08:00:01 [a.py:1] x"])[3])
    assert own is not None and (own.rank, own.who) == (5, "Worker_TP5")


LINES = {
    "pod": ("[pod/k3-0/vllm] hello", ("hello", "pod/k3-0/vllm", None)),
    "rank in a service's name": ("k3-rank-3  | hello", ("hello", "k3-rank-3", 3)),
    "kernel in the journal": ("Sep 20 08:00:01 n7 kernel: NVRM: x", ("NVRM: x", "n7", None)),
    "stern": ("k3-0-abc vllm (APIServer pid=1) hi", ("(APIServer pid=1) hi", "k3-0-abc vllm", None)),
    "structured": ('{"level": "info", "msg": "hello", "ts": "2026-09-20T08:00:01Z"}', ("hello", "", None)),
    "progress bar": ("Loading: 1/9\rLoading: 2/9", ("Loading: 2/9", "", None)),
    "title of a terminal": ("\x1b]0;vllm\x07hello\x1b[0m", ("hello", "", None)),
}


@pytest.mark.parametrize("name", LINES)
def test_a_label_says_where_a_line_comes_from(name):
    line, expected = LINES[name]
    carried_line = carriers.unwrap(line)
    assert (carried_line.text, carried_line.source, carried_line.rank) == expected


@pytest.mark.parametrize(
    "line",
    [
        "| 64 | 64 | 0 | FULL | 12 |",
        "(Worker_TP0 pid=4) INFO 09-20 08:00:01 [a.py:1] 3: x | y",
        'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK',
        "Loading safetensors checkpoint shards:  31% Completed | 30/96 [08:22<18:25, 16.75s/it]",
        "[rank3]: ValueError: q",
        "{'not': 'json'}",
        '{"json": "without a line"}',
        "gpu-a:50:51 [2] misc/shm.cc:72 NCCL WARN Error: no room",
        '  File "x.py", line 3, in f',
    ],
)
def test_what_no_carrier_explains_stays_as_it_is(line):
    assert carriers.unwrap(line).text == line


def test_a_carriers_time_orders_what_has_none_of_its_own(tmp_path):
    kernel = tmp_path / "kernel.log"
    kernel.write_text(
        "Sep 20 07:59:00 n7 kernel: NVRM: Xid (PCI:0000:4b:00): 79, pid=7, GPU has fallen off the bus.\n"
    )
    report = scan([kernel])
    assert report.incidents[0].first.seconds == parse("INFO 09-20 07:59:00 [a:1] x").seconds  # type: ignore[union-attr]


def test_a_repeated_line_of_ray_counts_as_often_as_it_was_said():
    line = "(RayWorkerWrapper pid=7, ip=192.0.2.14) ValueError: x [repeated 15x across cluster]"
    record = parse(line)
    assert record is not None and (record.text, record.repeats) == ("ValueError: x", 15)
