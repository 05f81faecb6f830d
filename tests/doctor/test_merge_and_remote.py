"""Reports of several hosts: saved ones, and ones collected through ssh."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from k3ctl.checks import merge, remote, verdict
from k3ctl.errors import UsageError
from k3ctl.gpus import from_json, to_json
from k3ctl.host.shell import MISSING, TIMED_OUT, Output
from k3ctl.planning.runnable import judge

FIXTURES = Path(__file__).parent.parent / "fixtures"


def envelope(name: str, hostname: str = "", collected_at: float | None = None) -> str:
    """What ``k3ctl doctor --json`` would print on the host of a saved snapshot."""
    snapshot, _ = from_json(json.loads((FIXTURES / name).read_text(encoding="utf-8")))
    data = to_json(snapshot)
    hosts = []
    for node in data["nodes"]:
        node["hostname"] = hostname or node["hostname"]
        hosts.append({"hostname": node["hostname"], "collected_at": collected_at or time.time()})
    return json.dumps({"envelope": "k3ctl.result/1", "data": {"snapshot": data, "hosts": hosts}})


def test_four_saved_reports_make_one_group(tmp_path: Path) -> None:
    for tray in range(4):
        (tmp_path / f"node{tray}.json").write_text(
            envelope("nvml-gb300-nvl72-tray.json", f"tray{tray}"), encoding="utf-8"
        )
    report = judge(merge.read(sorted(tmp_path.iterdir())))
    assert report.verdict.max_tp_in_domain == 16
    assert report.findings == ()


def test_two_hosts_of_one_name_are_kept_apart_and_it_is_said(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.json").write_text(envelope("nvml-hgx-h200.json", "node"), encoding="utf-8")
    gathered = merge.read(sorted(tmp_path.iterdir()))
    assert [node.hostname for node in gathered.snapshot.nodes] == ["node", "node#2"]
    assert "two reports are from a host named `node`" in gathered.notes[0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"data": {"snapshot": ', "is not JSON"),
        (b"\xff\xfe\x00binary", "is not JSON"),
        (b'{"schema": "k3ctl.nvml/9", "nodes": []}', "no k3ctl.nvml/1 snapshot (found 'k3ctl.nvml/9')"),
        (b'{"schema": "k3ctl.nvml/1", "nodes": [{"arch": "x"}]}', "no readable node"),
        (b"[1, 2, 3]", "no k3ctl.nvml/1 snapshot (found 'list')"),
    ],
    ids=["truncated", "not-text", "newer-schema", "no-host", "list"],
)
def test_a_bad_report_becomes_one_line_and_the_others_are_judged(
    tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "a.json").write_bytes(content)
    (tmp_path / "b.json").write_text(envelope("nvml-hgx-h200.json"), encoding="utf-8")
    gathered = merge.read(sorted(tmp_path.iterdir()))
    assert len(gathered.snapshot.nodes) == 1
    (note,) = gathered.notes
    assert said in note
    assert "\n" not in note


def test_a_50_mb_report_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(50_000_000)
    with pytest.raises(UsageError) as refused:
        merge.read([tmp_path / "a.json", tmp_path / "absent.json"])
    assert "larger than 32 MiB" in refused.value.reasons[0]
    assert "cannot read" in refused.value.reasons[1]


def test_values_of_a_newer_writer_are_repaired_and_named(tmp_path: Path) -> None:
    data = json.loads((FIXTURES / "nvml-hgx-h200.json").read_text(encoding="utf-8"))
    gpu = data["nodes"][0]["gpus"][0]
    gpu["memory"] = "plenty"
    gpu["quantum"] = {"a": 1}
    gpu["fabric"]["state"] = 7
    del gpu["vbios"]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    gathered = merge.read([path])
    assert gathered.notes == ("a.json: nodes[0].gpus[0].memory: value of an unknown form, got 'plenty'",)
    assert {f.id for f in judge(gathered).findings} == {"fabric.unknown-state", "unread.memory"}


def test_eighteen_trays_are_merged_within_two_seconds() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF)
    report = judge(merge.read([FIXTURES / "nvml-gb300-nvl72-18trays.json"]))
    report.to_json()
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert report.verdict.gpu_count == 72
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2.0


# ssh


class Hosts:
    """A stand-in for ssh: host name → what it answers."""

    def __init__(self, answers: dict[str, Output]) -> None:
        self.answers = answers
        self.argvs: list[Sequence[str]] = []

    def __call__(self, argv: Sequence[str], timeout_s: float) -> Output:
        self.argvs.append(argv)
        return self.answers[argv[argv.index("--") + 1]]


COMMAND = ["k3ctl", "doctor", "--json"]


def test_hosts_that_do_not_answer_are_findings_and_the_others_are_judged() -> None:
    hosts = Hosts(
        {
            "good": Output(1, envelope("nvml-gb300-nvl72-tray.json", "good")),
            "down": Output(255, "", "ssh: connect to host down port 22: No route to host"),
            "slow": Output(TIMED_OUT, "", ""),
            "bare": Output(MISSING, "", "bash: k3ctl: command not found"),
            "chatty": Output(0, "Welcome to chatty!\n{}"),
            "silent": Output(1, "", "segfault"),
        }
    )
    gathered = remote.collect(list(hosts.answers), COMMAND, 5.0, hosts)
    assert [node.hostname for node in gathered.snapshot.nodes] == ["good"]
    assert {(f.node, f.id) for f in gathered.findings} == {
        ("down", "node.unreachable"),
        ("slow", "node.unreachable"),
        ("bare", "node.no-k3ctl"),
        ("chatty", "node.bad-report"),
        ("silent", "node.bad-report"),
    }
    assert judge(gathered).failed


def test_ssh_gets_no_password_prompt_a_connect_limit_and_the_users_own_configuration() -> None:
    hosts = Hosts({"a": Output(0, envelope("nvml-hgx-h200.json"))})
    remote.collect(["a"], COMMAND, 5.0, hosts)
    assert hosts.argvs == [
        ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=2", "--", "a", "k3ctl doctor --json"]
    ]


def test_a_name_that_ssh_would_take_for_an_option_is_refused() -> None:
    with pytest.raises(UsageError, match="is no host name"):
        remote.collect(["-oProxyCommand=x"], COMMAND, 5.0, Hosts({}))


def test_a_wrong_clock_is_a_finding() -> None:
    late = envelope("nvml-hgx-h200.json", "late", collected_at=time.time() + 3600)
    (finding,) = remote.collect(["late"], COMMAND, 5.0, Hosts({"late": Output(0, late)})).findings
    assert finding.id == "node.clock-skew"
    assert "+3600 s" in finding.evidence or "+3599 s" in finding.evidence


def test_no_host_at_all_still_gives_a_report() -> None:
    gathered = remote.collect(["down"], COMMAND, 5.0, Hosts({"down": Output(255, "", "no route")}))
    report = judge(gathered)
    assert verdict(gathered.snapshot).product == "none"
    assert [f.id for f in report.findings] == ["node.unreachable"]


def test_a_real_process_that_hangs_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexec sleep 30\n", encoding="utf-8")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    start = time.monotonic()
    gathered = remote.collect(["a", "b"], COMMAND, 1.0)
    assert time.monotonic() - start < 10
    assert [f.id for f in gathered.findings] == ["node.unreachable"] * 2
