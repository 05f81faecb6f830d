"""Fail-stop between supervisors: in one process, over real sockets, with a clock in our hands."""

from __future__ import annotations

import json
import selectors
import socket
from dataclasses import dataclass, field

import pytest
from engine_helpers import tiny

from k3ctl.engine import command, procs, rundir
from k3ctl.engine.node import Node as Place
from k3ctl.engine.peers import JOIN_S, LOST_S, MAX_STRANGERS, Group, Peers
from k3ctl.errors import UsageError


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Node:
    peers: Peers
    selector: selectors.BaseSelector
    losses: list[tuple[str, bool]] = field(default_factory=list)

    def turn(self) -> None:
        for _ in range(3):
            for key, _ in self.selector.select(0.01):
                key.data()
            self.peers.tick()


def node(rank: int, nodes: int, port: int, clock: Clock, token: str = "t") -> Node:
    selector = selectors.DefaultSelector()
    losses: list[tuple[str, bool]] = []
    group = Group(rank, nodes, "127.0.0.1", port, token)
    peers = Peers(group, selector, lambda why, failed: losses.append((why, failed)), clock=clock)
    return Node(peers, selector, losses)


@pytest.fixture
def trio():
    clock, port = Clock(), procs.free_port("127.0.0.1")
    nodes = [node(rank, 3, port, clock) for rank in range(3)]
    for _ in range(3):
        for one in nodes:
            one.turn()
        clock.now += 1
    yield clock, nodes
    for one in nodes:
        one.peers.close()


def run(clock: Clock, nodes: list[Node], seconds: float) -> None:
    for _ in range(int(seconds)):
        clock.now += 1
        for one in nodes:
            one.turn()


def test_nodes_that_talk_lose_nobody_and_learn_that_the_server_is_ready(trio):
    clock, nodes = trio
    assert nodes[0].peers.all_ready()
    assert not nodes[1].peers.all_ready()
    nodes[0].peers.say("ready")
    run(clock, nodes, 60)
    assert [one.losses for one in nodes] == [[], [], []]
    assert nodes[1].peers.all_ready() and nodes[2].peers.all_ready()


def test_a_node_that_fails_stops_all_others_at_once(trio):
    clock, nodes = trio
    nodes[2].peers.say("failed", "the engine was killed by SIGKILL")
    run(clock, nodes, 1)
    assert nodes[0].losses == [("node 2 failed: the engine was killed by SIGKILL", True)]
    nodes[0].peers.say("failed", nodes[0].losses[0][0])
    run(clock, nodes, 1)
    assert nodes[1].losses == [("node 0 failed: node 2 failed: the engine was killed by SIGKILL", True)]


def test_a_node_whose_supervisor_is_killed_is_noticed_by_its_broken_connection(trio):
    clock, nodes = trio
    nodes[1].peers.close()
    run(clock, [nodes[0], nodes[2]], 1)
    assert nodes[0].losses == [("node 1 is gone (its connection broke)", True)]


def test_a_node_that_falls_silent_is_lost_after_eight_seconds_and_not_before(trio):
    clock, nodes = trio
    run(clock, [nodes[0], nodes[1]], LOST_S)
    assert nodes[0].losses == []
    run(clock, [nodes[0], nodes[1]], 2)
    assert nodes[0].losses == [("node 2 is gone (nothing heard for 8 s)", True)]


def test_an_orderly_stop_of_one_node_is_no_failure_of_the_others(trio):
    clock, nodes = trio
    nodes[0].peers.say("stopping", "asked to stop")
    run(clock, nodes, 1)
    assert nodes[1].losses == [("node 0 stops: asked to stop", False)]


def test_a_node_that_never_joins_ends_the_start():
    clock, port = Clock(), procs.free_port("127.0.0.1")
    alone = node(0, 2, port, clock)
    run(clock, [alone], 3)
    assert alone.losses == []
    clock.now += JOIN_S
    alone.turn()
    assert "1 of 2 nodes did not join" in alone.losses[0][0]
    alone.peers.close()


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\xff" * 4000,
        b'{"token":"other","rank":1,"state":"failed","why":""}\n',
        b"[]\n",
        b'{"hello":"0123456789abcdef"}\n{"said":[1,1,"failed","x"],"proof":"0000"}\n',
        b'{"hello":"0123456789abcdef"}\n{"said":[1,1,"failed","x"],"proof":["\\ud800"]}\n',
        b'{"hello":"0123456789abcdef"}\n' + b"[" * 4000 + b"\n",
        b'{"hello":1}\n',
    ],
    ids=["http", "binary", "old", "wrong-shape", "no-proof", "odd-proof", "deep", "odd-hello"],
)
def test_strangers_on_the_port_change_nothing(trio, noise):
    clock, nodes = trio
    with socket.create_connection(("127.0.0.1", nodes[0].peers.group.port)) as stranger:
        stranger.sendall(noise)
        run(clock, nodes, 1)
    run(clock, nodes, 1)
    assert [one.losses for one in nodes] == [[], [], []]


class Wire:
    """A stranger who can read and send lines but does not know the secret."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(2)
        self.file = self.socket.makefile("rb")

    def line(self) -> bytes:
        return self.file.readline()

    def send(self, line: bytes) -> None:
        self.socket.sendall(line)


def test_an_echo_of_our_own_lines_is_not_heard(trio):
    clock, nodes = trio
    wire = Wire(nodes[0].peers.group.port)
    run(clock, nodes, 1)
    wire.send(wire.line())  # the nonce comes back
    run(clock, nodes, 2)
    assert wire.line() == b"", "it hung up"
    assert nodes[0].losses == []


def test_a_line_that_was_recorded_is_not_heard_again_here_or_elsewhere(trio):
    """A relay between node 1's line and node 0: what it saw on one connection proves nothing on another."""
    clock, nodes = trio
    link = nodes[1].peers._links[0]
    said = [1, 1000, "failed", "recorded"]
    line = {"said": said, "proof": nodes[1].peers._proof(link.mine, link.theirs, said)}
    wire = Wire(nodes[0].peers.group.port)
    run(clock, nodes, 1)
    wire.send(json.dumps({"hello": link.mine}).encode() + b"\n" + json.dumps(line).encode() + b"\n")
    run(clock, nodes, 2)
    assert nodes[0].losses == []
    old = [1, 1, "failed", "again"]
    nodes[1].peers._put(link, {"said": old, "proof": nodes[1].peers._proof(link.mine, link.theirs, old)})
    run(clock, nodes, 1)
    assert nodes[0].losses == [("node 1 is gone (its connection broke)", True)], "not: node 1 failed"


def test_the_secret_and_its_digest_never_cross_the_network(trio):
    clock, nodes = trio
    wire = Wire(nodes[0].peers.group.port)
    wire.send(b'{"hello":"0123456789abcdef"}\n')
    run(clock, nodes, 2)
    assert set(json.loads(wire.line())) == {"hello"}
    said = json.loads(wire.line())
    assert set(said) == {"said", "proof"} and len(said["proof"]) == 64
    assert said["proof"] != json.loads(wire.line())["proof"], "two lines have two proofs"


def test_a_node_with_another_secret_ends_with_a_sentence_and_stops_nobody():
    clock, port = Clock(), procs.free_port("127.0.0.1")
    first, second = node(0, 2, port, clock), node(1, 2, port, clock, token="other")
    run(clock, [first, second], 3)
    assert "K3CTL_PEER_SECRET" in second.losses[0][0] and second.losses[0][1]
    assert first.losses == [] and not first.peers.all_ready()
    clock.now += JOIN_S
    first.turn()
    assert "K3CTL_PEER_SECRET" in first.losses[0][0]
    first.peers.close()
    second.peers.close()


def test_strangers_that_stay_are_sent_away_and_their_number_is_bounded(trio):
    clock, nodes = trio
    port = nodes[0].peers.group.port
    wires = [Wire(port) for _ in range(MAX_STRANGERS + 20)]
    for _ in range(60):
        nodes[0].turn()
    assert len(nodes[0].peers._links) <= MAX_STRANGERS + 2
    run(clock, nodes, 12)
    assert len(nodes[0].peers._links) == 2
    assert [one.losses for one in nodes] == [[], [], []]
    for wire in wires:
        wire.socket.close()


def test_the_secret_of_a_launch_does_not_follow_from_what_everyone_knows(tmp_path, state_dir, monkeypatch):
    monkeypatch.delenv("K3CTL_PEER_SECRET", raising=False)
    resolved, one = tiny(nnodes="2", tensor_parallel_size="2"), Place(0, "192.0.2.1")
    token = command.group(resolved, one)["token"]
    assert command.group(resolved, Place(1, "192.0.2.1"))["token"] == token, "nodes with one home agree"
    file = rundir.state_root() / "peers.secret"
    assert file.stat().st_mode & 0o777 == 0o600
    file.unlink()
    assert command.group(resolved, one)["token"] != token, "and other homes do not"
    for text in ("", "short"):
        with pytest.raises(UsageError, match="K3CTL_PEER_SECRET"):
            command.group(resolved, one, {"K3CTL_PEER_SECRET": text})
    given = {"K3CTL_PEER_SECRET": "x" * 16}
    assert command.group(resolved, one, given)["token"] == command.group(resolved, one, given)["token"]
    file.chmod(0o644)
    with pytest.raises(UsageError, match="alone"):
        command.group(resolved, one)
