"""A decision counts only in the capture it was made in."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from runtime.witness import Captures, Content
from runtime.witness.captures import MIXED, STANDARD

FAST = Content(specialized=True)


class Graphs:
    """An owner of graphs."""


class Stream:
    capturing = True


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def captures(stream: Stream) -> Captures:
    return Captures(lambda: stream.capturing)


def capture(captures: Captures, owner: Any, descriptor: str, *contents: Content) -> None:
    captures.bound(owner, descriptor, lambda: [captures.decide(content) for content in contents])()


def test_a_decision_belongs_to_its_owner_and_descriptor(captures: Captures) -> None:
    target, drafter = Graphs(), Graphs()
    capture(captures, target, "8", FAST)
    capture(captures, drafter, "8", STANDARD)
    assert captures.holds(target, "8") == FAST
    assert (
        captures.holds(drafter, "8") == captures.holds(target, "16") == captures.holds(None, "8") == STANDARD
    )


def test_outside_a_capture_nothing_is_decided(captures: Captures, stream: Stream) -> None:
    owner = Graphs()
    assert not captures.decide(FAST)
    stream.capturing = False
    capture(captures, owner, "8", FAST)
    assert captures.holds(owner, "8") == STANDARD
    stream.capturing = True
    capture(captures, owner, "8", FAST)
    assert not captures.decide(STANDARD)
    assert captures.holds(owner, "8") == FAST


def test_a_break_in_a_capture_decides_nothing(captures: Captures, stream: Stream) -> None:
    """vLLM ends and resumes a breakable capture around attention; what runs between is eager."""
    owner = Graphs()

    def forward() -> None:
        captures.decide(FAST)
        stream.capturing = False
        captures.decide(STANDARD)
        captures.kernels({"KDA + MoE": 99.0})
        stream.capturing = True
        captures.kernels({"KDA + MoE": 12.0})

    captures.bound(owner, "8", forward)()
    assert captures.holds(owner, "8") == Content(True, kernels={"KDA + MoE": 12.0})


@pytest.mark.parametrize("parts", [(FAST, STANDARD), (STANDARD, FAST), ()], ids=["second", "first", "silent"])
def test_a_graph_with_a_standard_part_is_not_specialized(
    captures: Captures, parts: tuple[Content, ...]
) -> None:
    owner = Graphs()
    capture(captures, owner, "8", *parts)
    assert captures.holds(owner, "8") == STANDARD


def test_parts_with_other_slots_are_told(captures: Captures) -> None:
    owner = Graphs()
    capture(captures, owner, "8", Content(True, "kda"), Content(True, "kda,moe"))
    assert captures.holds(owner, "8").slots == MIXED


def test_a_capture_that_fails_leaves_nothing(captures: Captures) -> None:
    owner = Graphs()
    capture(captures, owner, "8", FAST)

    def forward() -> None:
        captures.decide(FAST)
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        captures.bound(owner, "8", forward)()
    assert captures.holds(owner, "8") == STANDARD
    assert not captures.decide(FAST)


def test_graphs_that_are_gone_are_not_listed(captures: Captures) -> None:
    owner = Graphs()
    capture(captures, owner, "8", FAST)
    assert captures.all() == [("8", FAST)]
    del owner
    gc.collect()
    assert captures.all() == []


def test_a_capture_that_is_named_from_outside_is_its_own(stream: Stream) -> None:
    owner, other, changes = Graphs(), Graphs(), []
    captures = Captures(lambda: stream.capturing, lambda: (owner, "8"), lambda: changes.append(1))
    assert captures.decide(FAST)
    assert captures.holds(owner, "8") == FAST
    capture(captures, other, "8", STANDARD)  # an open capture goes before
    assert captures.holds(owner, "8") == FAST
    assert changes
