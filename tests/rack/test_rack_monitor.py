"""`k3ctl monitor` over a group: every node's GPUs through ssh, and what a node that is away leaves."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from conftest import script
from k3ctl.engine import procs
from k3ctl.errors import EngineError, UsageError
from k3ctl.feeds import watch
from k3ctl.feeds.rack_source import NodeGpuFeed, TunnelFeed
from k3ctl.rack import record, tunnel
from k3ctl.telemetry import recording
from k3ctl.telemetry.events import Event, FeedFailed, GpusRead
from k3ctl.telemetry.gpus import GpuSample

AHEAD_S = 5000.0


@pytest.fixture
def trays(hosts, monkeypatch) -> Iterator[object]:
    """Hosts with two GPUs each, whose clocks are ahead; `off…` are away, `chatty…` greet."""
    lines = hosts / "lines"
    reading = GpusRead(time.time() + AHEAD_S, "somename", (GpuSample(0, name="GB300"), GpuSample(1)))
    lines.write_text(json.dumps(recording.encode(reading)) + "\n")
    script(hosts.parent / "bin" / "k3ctl", f'cat "{lines}"; cat > /dev/null\n')
    return hosts


def until(feed: NodeGpuFeed, kind: type[Event], within_s: float = 20.0) -> Event:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        for event in feed.read():
            if isinstance(event, kind):
                return event
        time.sleep(0.05)
    raise AssertionError("nothing came")


@pytest.mark.parametrize("host", ["tray3", "chatty1"])
def test_a_nodes_gpus_come_under_the_operators_name_and_clock(host, trays):
    feed = NodeGpuFeed(host)
    event = until(feed, GpusRead)
    feed.close()
    assert (event.source, [gpu.name for gpu in event.gpus]) == (host, ["GB300", ""])
    assert abs(event.t - time.time()) < 60


def test_a_node_that_is_away_says_why_and_the_feed_goes_on(trays):
    feed = NodeGpuFeed("off1")
    event = until(feed, FeedFailed)
    assert (event.source, event.feed) == ("off1", "gpus")
    assert event.reason == "ssh: connect to host off1 port 22: Connection refused"
    feed.close()


def test_closing_a_feed_ends_its_ssh(trays):
    feed = NodeGpuFeed("tray0")
    until(feed, GpusRead)
    pid = feed._process.pid
    feed.close()
    assert procs.started_at(pid) is None


def group(**changes: object) -> record.Group:
    members = tuple(record.Member(f"tray{n}", n, f"10.0.0.{n}", f"run{n}") for n in range(4))
    values = {"url": "http://127.0.0.1:8000", "state": "ready", **changes}
    return record.create(record.Group(record.new_id("p"), "p", time.time(), members, **values), "s" * 64)


def test_the_only_group_that_lives_is_watched_without_being_named(hosts):
    made = group()
    assert watch.group([], None) == made == watch.group([], made.id)
    assert watch.group(["http://x:1"], None) is None
    record.ended(made, "stopped", "x")
    assert watch.group([], None) is None


def test_two_groups_are_not_guessed_between(hosts):
    group(), group()
    assert watch.group([], None) is None


def test_a_name_that_means_nothing_is_refused(hosts):
    with pytest.raises(UsageError, match="no run `zzz`"):
        watch.chosen([], "zzz", None, bench=None, gpus=True, interval_s=1.0, deadline_s=1.0)


@pytest.mark.parametrize(
    ("url", "needed"),
    [("http://127.0.0.1:8000", True), ("http://[::1]:8000", True), ("http://10.0.0.1:8000", False)],
)
def test_a_server_on_the_loopback_of_another_machine_needs_a_way(url, needed, hosts):
    assert tunnel.needed(group(url=url)) == needed


def test_every_node_of_a_group_has_a_feed_and_this_machines_gpus_are_not_read_twice(trays):
    feeds, _ = watch.chosen(
        [], group(url="http://10.0.0.1:8000").id, None, bench=None, gpus=True, interval_s=1.0, deadline_s=1.0
    )
    names = [type(feed).__name__ for feed in feeds]
    assert (
        names.count("NodeGpuFeed") == 4
        and "GpuFeed" not in names
        and not any(isinstance(feed, TunnelFeed) for feed in feeds)
    )


def test_a_way_that_cannot_be_made_is_an_error_that_names_the_node(hosts):
    way = tunnel.Tunnel("off0", "http://127.0.0.1:8000")
    with pytest.raises(EngineError, match="off0: no way to its server: ssh: connect to host off0"):
        way.open()
