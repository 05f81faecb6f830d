"""Fail-stop between supervisors: in one process, over real sockets, with a clock in our hands."""

from __future__ import annotations

import selectors
import socket
from dataclasses import dataclass, field

import pytest

from k3ctl.engine import procs
from k3ctl.engine.peers import JOIN_S, LOST_S, Group, Peers


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
    ],
    ids=["http", "binary", "another-launch", "wrong-shape"],
)
def test_strangers_on_the_port_change_nothing(trio, noise):
    clock, nodes = trio
    with socket.create_connection(("127.0.0.1", nodes[0].peers.group.port)) as stranger:
        stranger.sendall(noise)
        run(clock, nodes, 1)
    run(clock, nodes, 1)
    assert [one.losses for one in nodes] == [[], [], []]
