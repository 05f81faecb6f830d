"""Re-created reports and variants, through the command line, under names that say nothing."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from k3ctl import cli

FIXTURES = Path(__file__).parents[1] / "fixtures" / "round2"

# name → (files, exit code, what must be said, what must not)
CASES: dict[str, tuple[list[str], int, list[str], list[str]]] = {
    "illegal access, prefix caching off": (
        ["t-ima-prefix-off.log"],
        1,
        [r"error: illegal memory access", r"prefix caching is already off", r"next .*CUDA_LAUNCH_BLOCKING"],
        [r"enable_prefix_caching", r"no rule knows"],
    ),
    "capture out of memory behind srun's label": (
        ["t-srun-label.log"],
        1,
        [r"rule +capture-oom", r"by Worker_TP5", r"gpu_memory_utilization by 0\.02 \(now 0\.9: try 0\.88\)"],
        [],
    ),
    "assertion behind kubectl's label": (
        ["u-unknown-kubectl.log"],
        1,
        [r"error: assertion `assert 0 <= checkpoint_idx", r"by Worker_TP1", r"use_replayssm=false"],
        [r"no incident"],
    ),
    "stall behind compose's label": (
        ["u-stall-compose.log"],
        1,
        [r"error: the engine stalled: 33 requests running, 0 tokens/s for 170 s"],
        [r"no incident"],
    ),
    "collective time-out with a silent rank": (
        ["t-watchdog.log"],
        1,
        [r"error: a collective timed out on ranks 0–2, 4–7: rank 3 is silent", r"next .*rank 3"],
        [r"error: the engine core is dead", r"read the first error above"],
    ),
    "out of memory behind an NCCL error": (
        ["u-nccl-first.log"],
        1,
        [r"error: the GPU ran out of memory", r"by Worker_TP9", r"nccl-error .*gpu-oom"],
        [r"error: NCCL"],
    ),
    "line numbers of each file": (["la.log", "lb.log"], 1, [r"seen +b\.log:1,"], [r"b\.log:4"]),
    "KV transfer lost": (
        ["report-R01/decode.log"],
        1,
        [
            r"error: KV transfer",
            r"next +restart the decode engine",
            r"answer since 09-23 11:21:07 as suspect",
        ],
        [r"no rule knows"],
    ),
    "no kernel image": (
        ["report-R03/engine.log"],
        1,
        [
            r"error: .*architecture: rms_norm in _custom_ops\.py",
            r"10\.3",
            r"TORCH_CUDA_ARCH_LIST",
            r"cuobjdump",
        ],
        [r"no rule knows", r"error: the engine core did not start"],
    ),
    "artefacts without a network": (
        ["report-R05/engine.log"],
        1,
        [r"error: .*no way to edge\.urm\.nvidia\.com", r"flashinfer-cubin", r"FLASHINFER_CUBIN_DIR"],
        [r"no rule knows", r"error: AssertionError"],
    ),
    "no such interface": (
        ["report-R07/node1.log"],
        1,
        [r"error: the network interface enp90s0np0 does not exist", r"next +set NCCL_SOCKET_IFNAME"],
        [r"error: NCCL", r"no rule knows"],
    ),
    "kernel log: hardware": (
        ["report-R09/kernel.log"],
        1,
        [
            r"error: GPU hardware: 0000:4B:00: Xid 62, 45, 74, 154, 119 \(NVLink error\)",
            r"SXid 24007",
            r"GPU Reset Required",
        ],
        [r"no incident", r"no rule knows"],
    ),
    "kernel log and engine log": (
        ["report-R09/engine.log", "report-R09/kernel.log"],
        1,
        [r"error: GPU hardware", r"nvlink-error .*gpu-hardware", r"engine-dead"],
        [r"error: torch", r"error: the engine"],
    ),
    "stopped from outside": (
        ["report-R11/engine.log"],
        0,
        [r"stopped by a signal from outside \(SIGTERM\)", r"nobody crashed", r"kubelet", r"linger"],
        [r"error: the engine core is dead", r"no incident"],
    ),
    "container lost its GPUs": (
        ["report-R13/engine.log"],
        1,
        [r"error: the container lost its GPUs", r"daemon-reload", r"next +restart the container", r"CDI"],
        [r"cpu-tiny"],
    ),
    "two IMEX domains": (
        ["report-R14/node0.log"],
        1,
        [r"error: IMEX", r"different NVLink or IMEX domains", r"nodes_config", r"ComputeDomain"],
        [r"multi-node NVLink works", r"no rule knows", r"error: NCCL"],
    ),
    "head node gone": (
        ["report-X04/node1.log"],
        1,
        [r"error: the head node went away: .*\[node0\]:40027", r"next +read node 0's log"],
        [r"no incident"],
    ),
    "head node's own log": (
        ["report-X04/node1.log", "report-X04/node0.log"],
        1,
        [
            r"error: an internal socket is taken: tcp://192\.0\.2\.10:40143",
            r"b\.log:5\b",
            r"head-gone .*internal-port",
        ],
        [r"no incident"],
    ),
}


@pytest.mark.parametrize(
    ("name", "turned"),
    [
        (name, turned)
        for name, case in CASES.items()
        for turned in ((False, True) if len(case[0]) > 1 else (False,))
    ],
)
def test_a_report_reaches_its_verdict_through_the_command_line(name, turned, tmp_path, monkeypatch, capsys):
    files, code, must, must_not = CASES[name]
    names = [f"{letter}.log" for letter, _ in zip("abc", files, strict=False)]
    for short, file in zip(names, files, strict=True):
        shutil.copyfile(FIXTURES / file, tmp_path / short)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    assert cli.main(["triage", *(reversed(names) if turned else names)]) == code
    out = capsys.readouterr().out
    for pattern in must:
        assert re.search(pattern, out), f"lacks {pattern}:\n{out}"
    for pattern in must_not:
        assert not re.search(pattern, out), f"says {pattern}:\n{out}"


def test_every_log_of_the_round_has_a_verdict():
    expected = {file for files, *_ in CASES.values() for file in files}
    assert {path.relative_to(FIXTURES).as_posix() for path in FIXTURES.rglob("*.log")} >= expected
    mine = [*FIXTURES.glob("[tul]*.log"), *FIXTURES.glob("report-*/*.log")]
    assert {path.relative_to(FIXTURES).as_posix() for path in mine} == expected
