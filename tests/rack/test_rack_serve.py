"""A group of two over an ssh that stays on this machine, with a stand-in for the engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from k3ctl import cli
from k3ctl.engine import procs

SERVE = ["serve", "-p", "cpu-tiny", "--nodes", "tray0,chatty1", "--port", "0", "--no-verify"]
SERVE += ["--set", "nnodes=2", "--set", "tensor_parallel_size=2"]
LIMIT_S = 15.0


class Terminal:
    def __init__(self, folder: Path, *words: str) -> None:
        self._err = (folder / f"err-{time.monotonic_ns()}").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "k3ctl", *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._err, text=True,
        )  # fmt: skip

    def err(self) -> str:
        return Path(self._err.name).read_text()

    def said(self, text: str) -> Terminal:
        deadline = time.monotonic() + 90
        while text not in self.err():
            assert time.monotonic() < deadline and self.process.poll() is None, self.err()
            time.sleep(0.05)
        return self

    def ended(self) -> tuple[int, str, str]:
        out, _ = self.process.communicate(timeout=90)
        return self.process.returncode, out, self.err()


def left(hosts: Path) -> list[str]:
    """Processes of the group, wherever they have got to: their environment names the hosts' folder."""
    mark = f"HOSTS={hosts}\0".encode()
    found = []
    for process in procs.everyone():
        path = Path(f"/proc/{process.pid}/environ")
        if process.state in "ZX" or process.pid == os.getpid():
            continue
        try:
            if mark in path.read_bytes():
                found.append(f"{process.pid} {procs.command_line(process.pid)}")
        except OSError:
            continue
    return found


def nothing_is_left_within_15_s(hosts: Path) -> None:
    since = time.monotonic()
    while found := left(hosts):
        assert time.monotonic() - since < LIMIT_S, found
        time.sleep(0.1)


@pytest.fixture
def group(hosts: Path, tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path, *SERVE)
    yield terminal.said("Ctrl-C stops all nodes")
    terminal.process.kill()


def run_of(hosts: Path, host: str) -> dict[str, object]:
    return json.loads(next((hosts / host).rglob("run.json")).read_text())


def test_a_rank_that_dies_ends_the_group_names_its_node_and_keeps_every_log(group, hosts, capsys):
    os.kill(run_of(hosts, "chatty1")["engine_pid"], signal.SIGKILL)
    code, _, err = group.ended()
    nothing_is_left_within_15_s(hosts)
    assert code == 4
    assert "error: chatty1: the engine was killed by SIGKILL while serving" in err
    kept = sorted(path.name for path in (hosts / "operator").rglob("logs/*.log"))
    assert kept == ["chatty1.log", "tray0.log"]
    record = json.loads(next((hosts / "operator").rglob("group.json")).read_text())
    assert (record["state"], record["members"][1]["host"]) == ("failed", "chatty1")
    cli.main(["triage", "--run", record["id"], "--json"])
    report = json.loads(capsys.readouterr().out)["data"]
    assert [Path(name).stem for name in report["files"]] == ["tray0", "chatty1"]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGHUP])
def test_a_lead_that_is_killed_or_whose_terminal_closes_leaves_nothing(how, group, hosts):
    group.process.send_signal(how)
    nothing_is_left_within_15_s(hosts)
    states = {run_of(hosts, host)["state"] for host in ("tray0", "chatty1")}
    assert states <= {"stopped", "failed"}


def test_a_detached_group_is_listed_read_and_stopped(hosts, tmp_path, capsys):
    assert cli.main([*SERVE, "--detach", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["data"]
    assert [(one["host"], one["rank"]) for one in made["members"]] == [("tray0", 0), ("chatty1", 1)]
    assert cli.main(["ps", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["data"]["groups"]
    assert [(one["state"], [m["state"] for m in one["members"]]) for one in listed] == [
        ("ready", ["ready", "ready"])
    ]
    assert cli.main(["logs", "-n", "1"]) == 0
    assert [line.split(" | ")[0].strip() for line in capsys.readouterr().out.splitlines()] == [
        "tray0",
        "chatty1",
    ]
    told_where_it_is([run_of(hosts, host) for host in ("tray0", "chatty1")])
    assert cli.main(["stop", made["id"][-4:], "--json"]) == 0
    stopped = json.loads(capsys.readouterr().out)["data"]
    assert (stopped["runs"], [one["state"] for one in stopped["groups"]]) == ([], ["stopped"])
    nothing_is_left_within_15_s(hosts)
    secret = next((hosts / "operator").rglob("secret"))
    text = secret.read_text().strip()
    assert len(text) == 64 and secret.stat().st_mode & 0o077 == 0
    assert not [path for path in hosts.rglob("*.json") if text in path.read_text()]


def told_where_it_is(runs: list[dict[str, object]]) -> None:
    """Every node's engine knows its rank, node 0's address and its own."""
    for rank, run in enumerate(runs):
        words = run["argv"]
        assert words[words.index("--node-rank") + 1] == str(rank)
        assert words[words.index("--master-addr") + 1] == "127.0.0.1"
        assert ("--headless" in words) == (rank == 1)
        assert run["env"]["VLLM_HOST_IP"] == "127.0.0.1"
