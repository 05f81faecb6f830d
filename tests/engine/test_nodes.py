"""Fail-stop over nodes, with real supervisors and the fake engine: on loopback, and in network namespaces."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from engine_helpers import NOTHING, pids, tiny, until

from k3ctl import cli
from k3ctl.engine import launch, procs, rundir
from k3ctl.engine.node import Node

LIMIT_S = 15.0
ROOT = Path(cli.__file__).parents[1]


@pytest.fixture
def pair(fake_python, leftovers) -> Iterator[list[launch.RunningEngine]]:
    """Two nodes on loopback, both ready."""
    resolved = tiny(nnodes="2", tensor_parallel_size="2")
    master = procs.free_port("127.0.0.1")
    with ExitStack() as stack:
        engines = [
            stack.enter_context(launch.launch(resolved, port=0, node=Node(rank, "127.0.0.1", master)))
            for rank in range(2)
        ]
        for engine in engines:
            engine.wait_ready()
        yield engines


def gone_within(engines: list[launch.RunningEngine]) -> float:
    since = time.monotonic()
    for engine in engines:
        assert engine.wait(60)
    return time.monotonic() - since


def test_two_nodes_serve_and_stop_together(pair, leftovers):
    assert [engine.run.node_rank for engine in pair] == [0, 1]
    assert rundir.latest_live().node_rank == 0
    assert "--headless" in pair[1].run.argv and "--headless" not in pair[0].run.argv
    assert rundir.find(pair[0].url).id == pair[0].id
    pair[0].stop()
    assert gone_within(pair) < LIMIT_S
    assert [engine.run.state for engine in pair] == ["stopped", "stopped"]
    assert pair[1].run.reason == "node 0 stops: asked to stop"
    assert leftovers() == NOTHING


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("victim", ["worker", "core", "engine"])
def test_a_rank_that_is_killed_stops_every_node_within_15_s(node, victim, pair, leftovers):
    os.kill(pids(pair[node].run)[victim], signal.SIGKILL)
    assert gone_within(pair) < LIMIT_S
    assert [engine.run.state for engine in pair] == ["failed", "failed"]
    assert pair[1 - node].run.reason.startswith(f"node {node} failed: the engine")
    assert leftovers() == NOTHING


def test_a_whole_node_that_is_killed_stops_the_other(pair, leftovers):
    run = pair[1].run
    members = [p.pid for p in procs.everyone() if p.session == run.session]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # halted first: none has a last word
        for pid in members:
            procs.send(pid, number)
    assert gone_within(pair) < LIMIT_S
    assert pair[0].run.reason == "node 1 is gone (its connection broke)"
    assert leftovers() == NOTHING


@pytest.mark.slow
def test_a_supervisor_that_hangs_stops_the_other_node(pair, leftovers):
    run = pair[1].run
    os.kill(run.supervisor_pid, signal.SIGSTOP)
    assert gone_within(pair[:1]) < LIMIT_S
    assert pair[0].run.reason == "node 1 is gone (nothing heard for 8 s)"
    os.kill(run.supervisor_pid, signal.SIGCONT)
    assert gone_within(pair[1:]) < LIMIT_S
    assert leftovers() == NOTHING


def cannot_make_namespaces() -> str:
    """Why not, or an empty string."""
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which("ip") is None:
        return "`ip` (iproute2) is not installed"
    made = subprocess.run(["ip", "netns", "add", "k3probe"], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", "k3probe"], capture_output=True)
    return made.stderr.strip() if made.returncode else ""


@pytest.fixture
def hosts() -> Iterator[dict[str, str]]:
    """Two network namespaces joined by a cable: name → address."""
    if reason := cannot_make_namespaces():
        pytest.skip(f"no network namespaces: {reason}")
    names = {f"k3a{os.getpid()}": "192.0.2.1", f"k3b{os.getpid()}": "192.0.2.2"}
    first, second = names
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "k3v0", "netns", first, "type", "veth", "peer", "name", "k3v1", "netns", second)
        for name, device in zip(names, ("k3v0", "k3v1"), strict=True):
            ip("-n", name, "addr", "add", f"{names[name]}/24", "dev", device)
            ip("-n", name, "link", "set", device, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.mark.slow
def test_a_cable_that_is_cut_between_two_hosts_stops_both_within_15_s(hosts, fake_python, leftovers):
    """Nothing closes a connection here: each side has only the other's silence to go by."""
    first, second = hosts
    common = ["serve", "-p", "cpu-tiny", "--set", "nnodes=2", "--set", "tensor_parallel_size=2"]
    common += ["--master-addr", hosts[first], "--port", str(procs.free_port("127.0.0.1"))]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    children = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-m", "k3ctl", *common, "--node-rank", str(rank)],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, name in enumerate(hosts)
    ]
    until(lambda: [run.state for run in rundir.all_runs()] == ["ready", "ready"], 90)
    ip("-n", second, "link", "set", "k3v1", "down")
    since = time.monotonic()
    errors = [child.communicate(timeout=60)[1] for child in children]
    assert time.monotonic() - since < LIMIT_S
    assert [child.returncode for child in children] == [4, 4]
    assert "node 1 is gone (nothing heard for 8 s)" in errors[0]
    assert "node 0 is gone (nothing heard for 8 s)" in errors[1]
    assert leftovers() == NOTHING
