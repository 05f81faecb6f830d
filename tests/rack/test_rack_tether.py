"""The member's end of the connection: what it hears, and what silence is to it."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from k3ctl.errors import EngineError, K3Error, MachineError, UsageError
from k3ctl.rack import record, wire
from k3ctl.rack.tether import Tether


@dataclass
class Ends:
    tether: Tether
    to_member: int
    from_member: int
    interrupts: list[float] = field(default_factory=list)

    def hear(self, kind: str) -> dict[str, object]:
        buffer = b""
        while True:
            buffer += os.read(self.from_member, 1 << 16)
            for line in buffer.splitlines():
                if line.endswith(b"}") and json.loads(line)["k3"] == kind:
                    return json.loads(line)

    def interrupted(self, times: int) -> None:
        deadline = time.monotonic() + 20
        while len(self.interrupts) < times:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def ends() -> Iterator[Ends]:
    reading, to_member = os.pipe()
    from_member, writing = os.pipe()
    calls: list[float] = []
    tether = Tether(
        reading, writing, interrupt=lambda: calls.append(time.monotonic()), lease_s=2.0, lost_grace_s=0.3
    )
    tether.start()
    yield Ends(tether, to_member, from_member, calls)
    tether.close()


def test_orders_come_in_order_and_a_shells_greeting_is_none(ends):
    os.write(ends.to_member, b"Welcome!\n{}\n[1]\n" + wire.line("hello", a=1) + wire.line("launch", b=2))
    assert ends.tether.order("hello") == {"k3": "hello", "a": 1}
    assert ends.tether.next() == {"k3": "launch", "b": 2}


def test_an_order_of_another_kind_is_refused(ends):
    os.write(ends.to_member, wire.line("launch"))
    with pytest.raises(UsageError, match="`launch` came where `hello`"):
        ends.tether.order("hello")


def test_a_stop_interrupts_once_and_the_lead_is_not_lost(ends):
    os.write(ends.to_member, wire.line("stop"))
    ends.interrupted(1)
    assert ends.tether.lost == ""


def test_an_end_of_the_connection_interrupts_twice(ends):
    os.close(ends.to_member)
    ends.interrupted(2)
    assert ends.tether.lost == "its connection ended"


def test_silence_interrupts_twice_and_beats_keep_it_away(ends):
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.1):
            os.write(ends.to_member, wire.line("beat"))

    thread = threading.Thread(target=beat)
    thread.start()
    time.sleep(2.5)
    assert ends.interrupts == []
    over.set()
    thread.join()
    ends.interrupted(2)
    assert ends.tether.lost == "nothing heard for 2 s"


def test_after_a_detach_nobody_is_missed(ends):
    os.write(ends.to_member, wire.line("detach"))
    os.close(ends.to_member)
    time.sleep(0.7)
    assert ends.tether.detach_wanted.is_set() and ends.interrupts == []


def test_the_member_beats_by_itself(ends):
    assert ends.hear("beat") == {"k3": "beat"}


def test_a_message_that_nobody_takes_is_dropped_and_holds_nothing_up(ends):
    since = time.monotonic()
    ends.tether.say("ended", log="x" * (1 << 20))
    assert time.monotonic() - since < 10


@pytest.mark.parametrize("kind", [UsageError, MachineError, EngineError, K3Error])
def test_an_error_crosses_with_its_exit_code_and_its_nodes_name(kind):
    sent = kind("port 8000 is taken", hint="take another", reasons=["by pid 7"])
    got = wire.error(json.loads(json.dumps(wire.error_data(sent))), "tray1")
    assert (type(got), got.exit_code) == (kind, sent.exit_code)
    assert (got.message, got.hint, got.reasons) == (
        "tray1: port 8000 is taken",
        "take another",
        ("by pid 7",),
    )


@pytest.mark.parametrize("data", [None, [], "x", {}, {"message": None}, {"exit_code": "no", "reasons": 3}])
def test_a_damaged_error_is_still_an_error_of_that_node(data):
    assert wire.error(data, "tray1").message == "tray1: failed without a message"


@pytest.fixture
def group(tmp_path, monkeypatch) -> record.Group:
    monkeypatch.setenv("K3CTL_STATE_DIR", str(tmp_path))
    members = (record.Member("tray0", 0, "10.0.0.1", "r0"), record.Member("tray1", 1))
    return record.create(record.Group("g-1", "p", 1.0, members, url="http://10.0.0.1:8000"), "s" * 64)


def test_a_record_is_read_as_it_was_written(group):
    assert record.read(group.dir) == group
    assert record.find("g-1") == record.find("http://10.0.0.1:8000/v1") == group


def test_a_final_state_is_never_left(group):
    record.ended(group, "failed", "x")
    assert record.update(group.dir, state="ready").state == "failed"
    assert record.live() == []


def test_of_groups_that_stopped_in_order_the_newest_stay_and_a_failed_one_always(tmp_path, monkeypatch):
    monkeypatch.setenv("K3CTL_STATE_DIR", str(tmp_path))
    members = (record.Member("a", 0), record.Member("b", 1))
    for number in range(record.KEEP + 5):
        made = record.create(record.Group(f"g-{number}", "p", float(number), members), "s" * 64)
        record.ended(made, "failed" if number == 0 else "stopped", "x")
    record.create(record.Group("g-new", "p", 99.0, members), "s" * 64)
    left = {group.id for group in record.every()}
    assert left == {"g-new", "g-0"} | {f"g-{number}" for number in range(5, record.KEEP + 5)}


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "k3ctl.group/2"},
        {"members": []},
        {"members": [{"host": 1, "rank": 0}]},
        {"members": [{"rank": 0}]},
        {"members": 3},
        {"started_at": "now"},
        {"state": None},
        {"detached": 1},
        {"lead_pid": "7"},
        {"surplus": 1},
    ],
)
def test_a_damaged_record_is_refused_by_name_and_hides_only_itself(change, group):
    path = group.dir / "group.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UsageError, match=r"group.json"):
        record.read(group.dir)
    assert record.every() == []
