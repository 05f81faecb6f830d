"""``k3ctl doctor`` as a user runs it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from tests.in_process import k3ctl

FIXTURES = Path(__file__).parent.parent / "fixtures"


def as_a_process(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "k3ctl", *args], capture_output=True, text=True, check=False)


def test_a_machine_without_a_driver_is_told_so_in_one_line_and_what_runs() -> None:
    done = as_a_process("doctor")
    assert done.returncode == 0
    assert " · no GPU · " in done.stdout.splitlines()[0]
    assert "No NVIDIA driver" in done.stdout
    assert "can run here: cpu-tiny" in done.stdout


def test_doctor_without_a_gpu_answers_within_a_second() -> None:
    # processor seconds of the best run, not the wall clock: the machine that runs the tests may be busy
    assert any(_processor_seconds() < 1.0 for _ in range(8))


def _processor_seconds() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    as_a_process("doctor")
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


def test_nodes_are_collected_with_ssh_from_start_to_end(tmp_path: Path) -> None:
    """ssh here runs the remote command on this machine; one host is down."""
    ssh = '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\n[ "$2" = down ] && exit 255\nexec sh -c "$3"\n'
    remote = f'#!/bin/sh\nexec {sys.executable} -m k3ctl "$@"\n'
    for name, text in (("ssh", ssh), ("far k3ctl", remote)):
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    words = ["doctor", "--nodes", "up,down", "--json", "--remote-k3ctl", str(tmp_path / "far k3ctl")]
    done = subprocess.run([sys.executable, "-m", "k3ctl", *words], capture_output=True, text=True, env=env)
    answer = json.loads(done.stdout)
    assert done.returncode == 1
    assert len(answer["data"]["snapshot"]["nodes"]) == 1
    assert {(f["node"], f["id"]) for f in answer["data"]["findings"] if f["severity"] == "fail"} == {
        ("down", "node.unreachable")
    }


def test_captures_are_judged_and_bad_files_are_one_warning_each(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_bytes((FIXTURES / "smi-q-fabric-unhealthy.txt").read_bytes())
    (tmp_path / "bad.txt").write_text("hello\n", encoding="utf-8")
    done = k3ctl("doctor", "--from", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "warning: bad.txt: not a capture that k3ctl knows (begins with `hello`)"
    ]
    assert "fabric.unhealthy" in done.stdout


def test_a_profile_that_this_machine_cannot_run_exits_with_3(tmp_path: Path) -> None:
    profile = tmp_path / "big.yaml"
    profile.write_text(
        "schema: 1\nname: big\nsummary: s\nstatus: untested\nrequires: {gpu: [B300], gpus: 8}\n"
        "model: {id: moonshotai/Kimi-K3, served_name: k3}\n"
        "serve: {args: {tensor_parallel_size: 8, trust_remote_code: true}}\ndecode: {max_num_seqs: 8}\n",
        encoding="utf-8",
    )
    done = k3ctl("doctor", "--profile", str(profile), "--json")
    assert done.returncode == 3
    assert "requires.gpu" in {f["id"] for f in json.loads(done.stdout)["data"]["findings"]}
    assert (
        k3ctl("doctor", "merge", str(FIXTURES / "nvml-hgx-b300.json"), "--profile", str(profile)).returncode
        == 0
    )


def test_sources_exclude_each_other_and_probes_need_a_machine(tmp_path: Path) -> None:
    for args in (
        ["merge", "a.json", "--nodes", "a"],
        ["--from", str(tmp_path), "--nodes", "a"],
        ["merge", "a.json", "--probe"],
        ["--from", str(tmp_path), "--probe-multicast"],
        ["merge"],
        ["mrege", "a.json"],
        ["--from", str(tmp_path / "absent")],
        ["--profile", "no-such-profile"],
    ):
        done = k3ctl("doctor", *args)
        assert done.returncode == 2, args
        assert done.stderr.startswith("error: "), args
        assert "Traceback" not in done.stderr, args


def test_the_help_says_that_the_multicast_probe_is_dangerous_and_not_the_default() -> None:
    said = " ".join(k3ctl("doctor", "--help").stdout.replace("│", " ").split())
    assert "can take GPUs out of service" in said
    assert "Never done by default" in said


def test_a_probe_without_gpus_says_that_nothing_was_probed() -> None:
    done = k3ctl("doctor", "--probe")
    assert (done.returncode, done.stderr) == (0, "warning: nothing was probed: there is no GPU here\n")
