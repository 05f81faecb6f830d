"""``doctor --active``: the child's lines, its end, its environment, and what the rules make of them.

No GPU here: the child is replaced by a script that says what a GPU's would, or it measures the processor.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k3ctl.checks import Severity, evaluate
from k3ctl.gpus import active, files
from k3ctl.gpus.types import Gpu, GpuProcess, Memory
from k3ctl.host.codec import decode, encode
from k3ctl.host.types import Active, Collective, Host, Triad
from k3ctl.host.values import Refused
from k3ctl.machine import measured

FIXTURES = Path(__file__).parents[1] / "fixtures"
H200, HGX = FIXTURES / "nvml-h200-x2-vm.json", FIXTURES / "nvml-hgx-h200.json"
IDLE = Memory(total=150 * 10**9, free=149 * 10**9, used=10**9)


def gpu(index: int = 0, **changes: Any) -> Gpu:
    return replace(Gpu(index=index, uuid=f"GPU-u{index}", processes=(), memory=IDLE), **changes)


def child(tmp_path: Path, body: str) -> Path:
    """A program in the place of the real child; ``say`` writes a line, ``action`` is what is asked."""
    path = tmp_path / "child.py"
    head = "import json, os, subprocess, sys, time\naction = sys.argv[1]\n"
    head += "def say(**line):\n    print(json.dumps(line), flush=True)\n"
    path.write_text(head + textwrap.dedent(body))
    return path


GOOD = """
    if action == "triad":
        say(torch="2.14.0", cuda="13.0")
        say(triad=True, device=1, uuid="u1", gb_s=4210.0, median_gb_s=4200.0, correct=True)
        say(triad=True, device=0, uuid="GPU-u0", gb_s=4205.0, median_gb_s=4200.0, correct=True)
    else:
        say(torch="2.14.0")
        say(collective=True, ranks=2, bytes=268435456, bus_gb_s=310.0, correct=True, nccl="2.29.7")
    say(done=True)
"""


def measure(tmp_path: Path, body: str, environ: dict[str, str] | None = None) -> Active:
    return active.measure(
        [gpu(0), gpu(1)],
        {**os.environ, **(environ or {})},
        python=sys.executable,
        child=child(tmp_path, body),
    )


def test_the_lines_become_a_result_under_nvmls_indices(tmp_path: Path) -> None:
    found = measure(tmp_path, GOOD)
    assert [(t.gpu, t.uuid, t.gb_s, t.correct) for t in found.triads] == [
        (1, "GPU-u1", 4210.0, True),
        (0, "GPU-u0", 4205.0, True),
    ]
    assert found.collective == Collective(2, 268435456, 310.0, True, "2.29.7")
    assert (found.error, found.torch) == ("", "2.14.0")


def test_a_result_survives_a_saved_report(tmp_path: Path) -> None:
    host = Host(hostname="h", active=measure(tmp_path, GOOD))
    notes: list[str] = []
    assert decode(Host, json.loads(json.dumps(encode(host))), notes) == host
    assert notes == []


@pytest.mark.parametrize(
    ("body", "error", "triads"),
    [
        ('say(error="torch sees no GPU")', "torch sees no GPU", 0),
        ("pass", "the measurement ended early", 0),
        ("sys.exit(3)", "the child ended with status 3", 0),
        ('print("not json"); print("[1]"); sys.exit(0)', "the measurement ended early", 0),
        ('say(triad=True, uuid="u0", gb_s=1.0); os.kill(os.getpid(), 9)', "status -9", 1),
        ('say(triad=True, uuid="u0", gb_s="fast", correct="yes"); say(done=True); action == "triad" or sys.exit(4)',
         "status 4", 1),
    ],
)  # fmt: skip
def test_a_child_that_fails_is_named_and_what_it_said_before_counts(
    body: str, error: str, triads: int, tmp_path: Path
) -> None:
    found = measure(tmp_path, body)
    assert error in found.error
    assert len(found.triads) == triads
    assert found.collective is None


def test_after_a_failed_triad_nothing_more_is_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    measure(tmp_path, f"open({str(log)!r}, 'a').write(action + '\\n'); sys.exit(1)")
    assert log.read_text() == "triad\n"


def test_a_child_that_hangs_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active, "TRIAD_LIMIT_S", 3.0)
    pid = tmp_path / "pid"
    body = f"""
        say(triad=True, uuid="u0", gb_s=5.0)
        rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open({str(pid)!r}, "w").write(str(rank.pid))
        time.sleep(600)
    """
    begin = time.monotonic()
    found = measure(tmp_path, body)
    assert time.monotonic() - begin < 60
    assert found.error == "no end within 3 s"
    assert [t.gb_s for t in found.triads] == [5.0]
    for _ in range(200):
        if not running(int(pid.read_text())):
            break
        time.sleep(0.05)
    assert not running(int(pid.read_text()))


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_python_that_is_none_is_said(tmp_path: Path) -> None:
    found = active.measure([gpu()], {"PATH": ""}, python="/nowhere/python")
    assert "no program" in found.error


def test_the_environment_is_serves_but_for_multicast(tmp_path: Path) -> None:
    names = '("NCCL", "TORCH_SYMM", "NVSHMEM")'
    body = f"say(error=json.dumps({{k: v for k, v in os.environ.items() if k.startswith({names})}}))"
    own = {"NCCL_DEBUG": "WARN", "NCCL_NVLS_ENABLE": "1", "NVSHMEM_DISABLE_NVLS": "1"}
    clean = {name: value for name, value in os.environ.items() if name not in active.NO_MULTICAST}
    found = active.measure([gpu()], {**clean, **own}, python=sys.executable, child=child(tmp_path, body))
    seen = json.loads(found.error)
    assert seen["NCCL_DEBUG"] == "WARN"
    assert {name: seen[name] for name in active.NO_MULTICAST} == active.NO_MULTICAST
    assert found.changed == {"NCCL_NVLS_ENABLE": "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "not set"}


@pytest.mark.parametrize("set_to", ["1", "2", "", "yes"])
def test_no_setting_of_serve_turns_multicast_on(set_to: str) -> None:
    env, changed = active.environment(dict.fromkeys(active.NO_MULTICAST, set_to))
    assert {name: env[name] for name in active.NO_MULTICAST} == active.NO_MULTICAST
    assert "NCCL_NVLS_ENABLE" in changed


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"processes": (GpuProcess(pid=77, bytes=1),)}, "in use by pid 77"),
        ({"processes": (GpuProcess(pid=77, bytes=None), GpuProcess(pid=78, bytes=None))}, "pid 77, 78"),
        ({"processes": Refused("NoPermission", 4)}, "cannot be read (NoPermission)"),
        ({"memory": replace(IDLE, used=3 * 2**30)}, "3.0 GiB are held"),
        ({"memory": Refused("NotSupported", 3)}, "whether its memory is free cannot be read"),
    ],
)
def test_a_gpu_that_is_not_known_to_be_idle_is_left_alone(changes: dict[str, Any], said: str) -> None:
    (line,) = active.refusals([gpu(0), gpu(1, **changes)])
    assert line.startswith("GPU 1: ") and said in line
    assert active.refusals([gpu(0)]) == []


Judge = Callable[[Active], dict[str, tuple[Severity, str]]]


def judge(found: Active, fixture: Path = HGX) -> dict[str, tuple[Severity, str]]:
    """Active rules by id: severity and the places' evidence."""
    snapshot, _ = files.from_json(files.find(json.loads(fixture.read_text())), source="t")
    host = Host(hostname=snapshot.nodes[0].hostname, active=found)
    made: dict[str, tuple[Severity, str]] = {}
    for one in evaluate(snapshot, {host.hostname: host}):
        if one.id.startswith("active."):
            before = made.get(one.id, (one.severity, ""))[1]
            made[one.id] = (one.severity, f"{before}{one.where}: {one.evidence}; ")
    return made


def triads(*rates: float) -> tuple[Triad, ...]:
    return tuple(Triad(index, f"GPU-{index}", rate, rate, True) for index, rate in enumerate(rates))


EVEN = triads(*[4100.0] * 8)
RING = Collective(8, 2**28, 300.0, True, "2.29.7")


def test_eight_even_gpus_and_a_fast_reduction_are_no_finding() -> None:
    assert judge(Active(EVEN, RING)) == {}
    assert judge(Active(EVEN, Collective(1, error="one GPU is visible: nothing to reduce over"))) == {}


@pytest.mark.parametrize(
    ("found", "rule", "severity", "said"),
    [
        (
            Active(triads(*[4100.0] * 7, 3000.0), RING),
            "active.slow-memory",
            Severity.WARN,
            "GPU 7: 3000 GB/s",
        ),
        (
            Active(triads(*[4100.0] * 7, 3700.0), RING),
            "active.slow-memory",
            Severity.WARN,
            "beside its neighbours",
        ),
        (Active(EVEN, replace(RING, bus_gb_s=149.0)), "active.slow-collective", Severity.WARN, "149 GB/s"),
        (Active(EVEN, replace(RING, correct=False)), "active.wrong-data", Severity.FAIL, "all-reduce"),
        (
            Active((replace(EVEN[0], correct=False), *EVEN[1:]), RING),
            "active.wrong-data",
            Severity.FAIL,
            "GPU 0",
        ),
        (
            Active((replace(EVEN[0], error="OutOfMemoryError"), *EVEN[1:])),
            "active.failed",
            Severity.FAIL,
            "OutOf",
        ),
        (Active(error="no end within 90 s"), "active.failed", Severity.FAIL, "no end"),
        (
            Active(EVEN, Collective(8, error="ranks ended with status [1]")),
            "active.failed",
            Severity.FAIL,
            "ranks",
        ),
    ],
)
def test_what_is_wrong_is_found(found: Active, rule: str, severity: Severity, said: str) -> None:
    made = judge(found)
    assert made[rule][0] == severity
    assert said in made[rule][1]


def test_a_slower_gpu_is_never_judged_better() -> None:
    """Worsen one GPU step by step: once found, it stays found."""
    found = False
    for rate in (4100.0, 4000.0, 3800.0, 3500.0, 3000.0, 1000.0, 1.0):
        now = "active.slow-memory" in judge(Active(triads(*[4100.0] * 7, rate), RING))
        assert now or not found
        found = now
    assert found


def test_two_gpus_have_no_median_to_stand_beside() -> None:
    assert judge(Active(triads(4100.0, 3700.0)), H200) == {}
    assert "GPU 1: 3000" in judge(Active(triads(4100.0, 3000.0)), H200)["active.slow-memory"][1]


def test_what_was_measured_is_kept_for_bundles_of_these_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("K3CTL_STATE_DIR", str(tmp_path))
    assert measured.of_gpus(["GPU-0"]) is None
    measured.keep(Active(error="no end"))
    assert measured.of_gpus(["GPU-0"]) is None
    measured.keep(Active(triads(4100.0, 4000.0), RING), now=7.0)
    kept = measured.of_gpus(["GPU-0", "GPU-1"])
    assert kept is not None and kept["measured_at"] == 7.0
    assert kept["active"]["triads"][1]["gb_s"] == 4000.0
    assert measured.of_gpus(["GPU-0", "GPU-9"]) is None  # one of them is another GPU
    assert measured.of_gpus([]) is None
    measured.place().write_text("{")
    assert measured.of_gpus(["GPU-0"]) is None


CHILD = active.CHILD


def run_child(*argv: str, env: dict[str, str] | None = None) -> list[dict[str, Any]]:
    lines, problem = active._lines(
        [sys.executable, "-P", str(CHILD), *argv], {**os.environ, **(env or {})}, 280
    )
    assert problem == ""
    return lines


def test_the_real_child_refuses_where_multicast_is_not_forbidden() -> None:
    for missing in active.NO_MULTICAST:
        env = {**active.NO_MULTICAST, missing: "maybe"}
        (line,) = run_child("triad", "1", "--bytes", "4", env=env)
        assert missing in line["error"]


@pytest.mark.slow
@pytest.mark.engine
def test_the_real_child_measures_the_processor_and_reduces_over_gloo() -> None:
    """Every line of the child but CUDA's own: the sums are checked by it, and a rate is no rate of a GPU."""
    first = run_child("triad", "0.2", "--device", "cpu", "--count", "2", "--bytes", "4000000")
    assert [line["correct"] for line in first if line.get("triad")] == [True, True]
    assert all(line["gb_s"] >= line["median_gb_s"] > 0 for line in first if line.get("triad"))
    assert first[-1] == {"done": True}
    second = run_child("allreduce", "120", "--device", "cpu", "--count", "2", "--bytes", "400000")
    (line,) = [line for line in second if line.get("collective")]
    assert (line["ranks"], line["correct"], line["bytes"]) == (2, True, 400000)
    assert line["bus_gb_s"] > 0
    alone = run_child("allreduce", "60", "--device", "cpu", "--count", "1", "--bytes", "4000")
    assert "nothing to reduce" in next(line["error"] for line in alone if line.get("collective"))
