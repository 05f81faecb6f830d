"""Which node was first, from what every node says."""

from __future__ import annotations

import itertools

import pytest

from k3ctl.rack.story import Ending, first

KILLED = "the engine was killed by SIGKILL while serving"


def told(rank: int, reason: str) -> Ending:
    return Ending(rank, "failed", reason)


@pytest.mark.parametrize("origin", range(4))
@pytest.mark.parametrize(
    "reason", [KILLED, "the engine ended with status 1 while starting", "the supervisor was killed"]
)
def test_the_node_that_tells_of_itself_was_first_in_whatever_order_they_are_heard(origin, reason):
    hub = 0
    for order in itertools.permutations(range(4)):
        chain = {
            rank: f"node {origin} failed: {reason}"
            if hub in (rank, origin)
            else f"node {hub} stops: node {origin} failed: {reason}"
            for rank in range(4)
        }
        chain[origin] = reason
        found = first([told(rank, chain[rank]) for rank in order])
        assert (found.rank, found.reason) == (origin, reason)


def test_hearsay_is_enough_when_the_node_itself_never_said_it():
    endings = [told(0, f"node 2 failed: {KILLED}"), told(1, f"node 0 failed: node 2 failed: {KILLED}")]
    for order in itertools.permutations(endings):
        found = first(order)
        assert (found.rank, found.reason) == (2, KILLED)


def test_a_node_that_vanished_wins_over_an_engine_that_failed_for_it():
    endings = [
        told(0, "the engine ended with status 1 while serving"),
        Ending(1, "failed", "nothing heard for 8 s", gone=True),
    ]
    for order in itertools.permutations(endings):
        assert first(order).rank == 1


def test_two_nodes_that_lost_each_other():
    endings = [
        told(2, "node 0 is gone (nothing heard for 8 s)"),
        told(0, "node 2 is gone (nothing heard for 8 s)"),
        told(1, "node 0 failed: node 2 is gone (nothing heard for 8 s)"),
    ]
    for order in itertools.permutations(endings):
        found = first(order)
        assert {found.rank, found.other} == {0, 2}, order


def test_an_orderly_stop_is_no_failure():
    assert (
        first([Ending(0, "stopped", "asked to stop"), Ending(1, "stopped", "node 0 stops: asked to stop")])
        is None
    )
    assert first([]) is None
