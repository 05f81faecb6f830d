"""GPUs of several nodes: the worst first whatever the order they were read in, and their NVLink domains."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from k3ctl.telemetry import group, recording, snapshot
from k3ctl.telemetry.events import FeedFailed, GpusRead
from k3ctl.telemetry.gpus import GpuFinding, GpuSample
from k3ctl.telemetry.reducer import reduce_all
from k3ctl.telemetry.view import NodeView, View, build

RACK = "11111111-0000-0000-0000-000000000000/7"


def gpus(**of_first: object) -> tuple[GpuSample, ...]:
    four = [GpuSample(index, name="GB300", nvlink_domain=RACK) for index in range(4)]
    return (replace(four[0], **of_first), *four[1:])


def finding(severity: str, index: int) -> GpuFinding:
    return GpuFinding("clock.x", severity, "t", "e", "r", f"GPU {index}")


TRAYS = {
    "tray0": GpusRead(1.0, "tray0", gpus()),
    "tray1": GpusRead(1.0, "tray1", gpus(), (finding("warn", 2),)),
    "tray2": GpusRead(1.0, "tray2", gpus(lost="GpuIsLost")),
    "tray10": GpusRead(1.0, "tray10", gpus(), (finding("fail", 3),)),
}


def view(*events: GpusRead | FeedFailed) -> View:
    return build(reduce_all(events), 2.0)


def test_the_worst_gpu_comes_first_in_whatever_order_the_nodes_are_read() -> None:
    for order in itertools.permutations(TRAYS.values()):
        rows = [(node.source, gpu.sample.index) for node, gpu in group.worst_gpus_first(view(*order).nodes)]
        assert rows[:3] == [("tray2", 0), ("tray10", 3), ("tray1", 2)]
        assert rows[3:7] == [("tray0", index) for index in range(4)] and len(rows) == 16
        nodes = [node.source for node in group.worst_nodes_first(view(*order).nodes)]
        assert nodes == ["tray2", "tray10", "tray1", "tray0"]


def test_a_finding_about_gpu_1_is_not_about_gpu_10() -> None:
    node = NodeView("n", (), "", None, (finding("fail", 10),))
    one, ten = (view(GpusRead(1.0, "n", (GpuSample(index),))).nodes[0].gpus[0] for index in (1, 10))
    assert (group.badness(node, one), group.badness(node, ten)) == (0, 3)


def test_one_node_keeps_the_drivers_order() -> None:
    rows = group.worst_gpus_first(view(TRAYS["tray10"]).nodes)
    assert [gpu.sample.index for _, gpu in rows] == [0, 1, 2, 3]


def test_a_node_that_is_not_read_is_the_worst() -> None:
    nodes = view(*TRAYS.values(), FeedFailed(2.0, "tray0", "gpus", "gone")).nodes
    assert group.worst_nodes_first(nodes)[0].source == "tray0"


@pytest.mark.parametrize(
    ("domains", "text"),
    [
        ([RACK] * 4, "one NVLink domain of 16 GPUs on 4 nodes"),
        ([RACK, RACK, "x/1", "x/1"], "2 NVLink domains: tray0+tray1 (8), tray2+tray3 (8)"),
        ([RACK, RACK, RACK, ""], "one NVLink domain of 12 GPUs on 3 nodes; 4 GPUs in none"),
        ([RACK, f"{RACK}1", "", ""], "2 NVLink domains: tray0 (4), tray1 (4); 8 GPUs in none"),
        ([""] * 4, ""),
    ],
)
def test_nvlink_domains(domains: list[str], text: str) -> None:
    trays = [
        GpusRead(1.0, f"tray{number}", tuple(replace(gpu, nvlink_domain=domain) for gpu in gpus()))
        for number, domain in enumerate(domains)
    ]
    for order in itertools.permutations(trays):
        assert group.domains(view(*order).nodes) == text
    assert (f"nvlink      {text}" in snapshot.lines(view(*trays))) == bool(text)


def test_a_nodes_reading_crosses_as_it_is() -> None:
    for event in (*TRAYS.values(), FeedFailed(2.0, "tray0", "gpus", "gone")):
        assert recording.decode(json.dumps(recording.encode(event))) == event
    assert recording.decode("Welcome to tray0") is None
