"""Four trays, real sshd, a stand-in for the engine: whatever dies, nothing is left on any tray within 15 s."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lab import ROOT, Lab, Tray

pytestmark = pytest.mark.cluster

LIMIT_S = 15.0
SERVE = ["serve", "-p", "cpu-tiny", "--port", "0", "--no-verify"]
FOUR = ["--nodes", "tray0,tray1,tray2,tray3", "--set", "nnodes=4", "--set", "tensor_parallel_size=4"]


class Terminal:
    """A k3ctl in a terminal of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._err = (folder / f"stderr-{time.monotonic_ns()}").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "k3ctl", *words],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._err,
            text=True,
            start_new_session=True,
        )

    def err(self) -> str:
        return Path(self._err.name).read_text()

    def until_said(self, text: str, within_s: float = 90) -> Terminal:
        deadline = time.monotonic() + within_s
        while text not in self.err():
            assert time.monotonic() < deadline and self.process.poll() is None, self.err()
            time.sleep(0.1)
        return self

    def ended(self) -> tuple[int, str, str]:
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out, self.err()


@pytest.fixture
def terminal(operator: Lab, tmp_path: Path):
    serving = Terminal(tmp_path, *SERVE, *FOUR)
    yield serving.until_said("Ctrl-C stops all nodes")
    serving.process.kill()


def left(lab: Lab) -> dict[str, list[str]]:
    """What runs on every tray beside its sshd, and what lies in its /dev/shm and /tmp."""
    return {tray.name: [*tray.processes().values(), *tray.litter()] for tray in lab.trays if tray.alive}


def seconds_until_nothing_is_left(lab: Lab, since: float, limit_s: float = LIMIT_S) -> float:
    while any(left(lab).values()):
        assert time.monotonic() - since < limit_s, left(lab)
        time.sleep(0.1)
    return time.monotonic() - since


def pid_of(tray: Tray, what: str) -> int:
    """The process on a tray whose command line (or name) holds ``what``."""
    found = [pid for pid, line in tray.processes().items() if what in line or what in name_of(pid)]
    assert found, (what, tray.processes())
    return min(found)


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


VICTIMS = {
    "worker": "fake_engine.py worker",
    "core": "fake_engine.py core",
    "engine": "fake_engine.py -m vllm",
    "member": "k3ctl member",
    "supervisor": "k3ctl-supervise",
    "reaper": "k3ctl-reaper",
}


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("victim", VICTIMS)
def test_kill_9_of_one_process_on_one_tray(victim, number, terminal, operator):
    tray = operator.trays[number]
    os.kill(pid_of(tray, VICTIMS[victim]), signal.SIGKILL)
    seconds_until_nothing_is_left(operator, time.monotonic())
    code, _, err = terminal.ended()
    assert code == 4
    assert f"error: {tray.name}: " in err, err


def test_kill_9_of_the_lead(terminal, operator):
    terminal.process.kill()
    seconds_until_nothing_is_left(operator, time.monotonic())


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_terminal_that_closes_and_a_stop(number, terminal, operator):
    terminal.process.send_signal(number)
    seconds_until_nothing_is_left(operator, time.monotonic())
    code, out, err = terminal.ended()
    assert code == (130 if number == signal.SIGINT else 0), err
    assert "tray3: stopped" in out


@pytest.mark.parametrize("number", [0, 3])
def test_a_connection_whose_sshd_is_killed(number, terminal, operator):
    tray = operator.trays[number]
    for pid in tray.sshd_sessions():
        os.kill(pid, signal.SIGKILL)
    seconds_until_nothing_is_left(operator, time.monotonic())
    code, _, err = terminal.ended()
    assert (code, f"error: {tray.name}: its connection is gone" in err) == (4, True), err


@pytest.mark.parametrize("number", [0, 1])
def test_a_cable_that_is_pulled(number, terminal, operator):
    """Nothing closes a connection: every side has only silence to go by."""
    tray = operator.trays[number]
    tray.cut()
    seconds_until_nothing_is_left(operator, time.monotonic())
    code, _, err = terminal.ended()
    assert (code, f"error: {tray.name}: " in err) == (4, True), err


def test_a_tray_that_loses_power(terminal, operator):
    operator.trays[3].power_off()
    seconds_until_nothing_is_left(operator, time.monotonic())
    code, _, err = terminal.ended()
    assert (code, "error: tray3: " in err) == (4, True), err


@pytest.mark.parametrize("victim", ["member", "supervisor"])
def test_a_process_that_hangs(victim, terminal, operator):
    """It cannot be asked to go; the others are gone in time, and it goes once it runs again."""
    tray = operator.trays[1]
    halted = pid_of(tray, VICTIMS[victim])
    os.kill(halted, signal.SIGSTOP)
    since = time.monotonic()
    while any(what for name, what in left(operator).items() if name != tray.name):
        assert time.monotonic() - since < LIMIT_S, left(operator)
        time.sleep(0.1)
    os.kill(halted, signal.SIGCONT)
    seconds_until_nothing_is_left(operator, time.monotonic())
    assert terminal.ended()[0] == 4


def test_a_detached_group_is_found_read_and_stopped(operator, tmp_path):
    code, out, err = Terminal(tmp_path, *SERVE, *FOUR, "--detach", "--json").ended()
    assert code == 0, err
    group = json.loads(out)["data"]
    assert [member["host"] for member in group["members"]] == ["tray0", "tray1", "tray2", "tray3"]
    listed = json.loads(Terminal(tmp_path, "ps", "--json").ended()[1])["data"]["groups"]
    assert [(one["id"], one["state"]) for one in listed] == [(group["id"], "ready")]
    _, out, _ = Terminal(tmp_path, "logs", "-n", "1").ended()
    assert [line.split(" | ")[0] for line in out.splitlines()] == ["tray0", "tray1", "tray2", "tray3"]
    code, out, err = Terminal(tmp_path, "stop").ended()
    assert code == 0, err
    seconds_until_nothing_is_left(operator, time.monotonic())


def test_a_detached_group_whose_cable_is_pulled_ends_without_anyone(operator, tmp_path):
    assert Terminal(tmp_path, *SERVE, *FOUR, "--detach").ended()[0] == 0
    operator.trays[1].cut()
    seconds_until_nothing_is_left(operator, time.monotonic())
    out = Terminal(tmp_path, "ps", "--all", "--json").ended()[1]
    states = {m["host"]: m["state"] for m in json.loads(out)["data"]["groups"][0]["members"]}
    assert states == {"tray0": "failed", "tray1": "unknown", "tray2": "failed", "tray3": "failed"}


def test_secrets_are_in_no_argument_and_in_no_record(terminal, operator, tmp_path):
    secret = next((tmp_path / "state" / "groups").glob("*/secret"))
    assert secret.stat().st_mode & 0o077 == 0
    text = secret.read_text().strip()
    lines = [line for tray in operator.trays for line in tray.processes().values()]
    lines += Path(f"/proc/{terminal.process.pid}/cmdline").read_text().split("\0")
    assert not [line for line in lines if text in line]
    records = [
        *(tmp_path / "state").rglob("*.json"),
        *(p for t in operator.trays for p in t.state.rglob("*.json")),
    ]
    assert records and not [path for path in records if text in path.read_text()]
