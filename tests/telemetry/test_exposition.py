"""The monitor's figures as Prometheus metrics: what is known and nothing else, under names that are declared."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from k3ctl.telemetry import exposition, rules
from k3ctl.telemetry.events import FeedFailed, GpusRead
from k3ctl.telemetry.exposition import SERIES, samples
from k3ctl.telemetry.gpus import GpuSample
from k3ctl.telemetry.measures import Acceptance
from k3ctl.telemetry.reducer import reduce_all
from k3ctl.telemetry.view import Alert, View, build
from tests.telemetry.feeding import URL, read

GPU = GpuSample(
    0, name="GB300", memory_used_bytes=3, memory_total_bytes=4, power_w=700.0, sm_mhz=1900, utilization_percent=50,
    links=18, links_up=17, nvlink_errors=2, throttle=("HW thermal",),
)  # fmt: skip


def values(view: View) -> dict[tuple[str, ...], float]:
    found = [((sample.name, *sample.labels), sample.value) for sample in samples(view)]
    assert len(dict(found)) == len(found), "a series appears twice"
    return dict(found)


def test_every_sample_is_declared_with_as_many_labels_and_lawful_names() -> None:
    view = build(reduce_all([read(1, num_requests_running=1), GpusRead(1.0, "tray0", (GPU,))]), 2.0)
    view = replace(view, alerts=(Alert("stalled", "fail", "t", "d", "a", "x"),))
    for sample in samples(view):
        assert len(sample.labels) == len(SERIES[sample.name].labels), sample
    for name, series in SERIES.items():
        assert re.fullmatch(r"k3ctl_[a-z_]+", name) and (series.kind == "counter") == name.endswith("_total")


def test_what_is_unknown_has_no_series() -> None:
    found = values(build(reduce_all([]), 1.0))
    assert {name[0] for name in found} == {"k3ctl_alerts"}
    found = values(build(reduce_all([read(1, num_requests_running=0)]), 2.0))
    assert found["k3ctl_requests_running",] == 0.0
    assert ("k3ctl_output_tokens_per_second",) not in found, "one reading gives no rate"
    assert ("k3ctl_path_specialized_ratio",) not in found, "no witness"


def test_units_are_those_of_the_names() -> None:
    found = values(build(reduce_all([GpusRead(1.0, "tray0", (GPU,))]), 2.0))
    assert found["k3ctl_gpu_sm_clock_hertz", "tray0", "0"] == 1.9e9
    assert found["k3ctl_gpu_utilization_ratio", "tray0", "0"] == 0.5
    assert found["k3ctl_gpu_throttled", "tray0", "0", "HW thermal"] == 1.0
    assert found["k3ctl_gpu_nvlink_links_up", "tray0", "0"] == 17
    assert found["k3ctl_node_age_seconds", "tray0"] == 1.0


def test_a_node_that_is_not_read_any_more_leaves_no_old_values_behind() -> None:
    events = [
        GpusRead(1.0, "tray0", (GPU,)),
        FeedFailed(2.0, "tray0", "gpus", "gone"),
        GpusRead(1.0, "tray1", (GPU,)),
    ]
    found = values(build(reduce_all(events), 3.0))
    assert found["k3ctl_node_gpus", "tray0"] == 0.0 and found["k3ctl_node_gpus", "tray1"] == 1.0
    assert not [name for name in found if name[0].startswith("k3ctl_gpu_") and name[1] == "tray0"]


def test_a_lost_gpu_says_so_and_nothing_else() -> None:
    found = values(build(reduce_all([GpusRead(1.0, "t", (replace(GPU, lost="GpuIsLost"),))]), 2.0))
    assert {name[0]: value for name, value in found.items() if "gpu_" in name[0]} == {"k3ctl_gpu_lost": 1.0}


@pytest.mark.parametrize("severity", exposition.SEVERITIES)
def test_alerts_are_counted_and_named_and_a_twin_is_one_series(severity: str) -> None:
    alert = Alert("stalled", severity, "t", "d", "a", "x")
    found = values(replace(View(1.0, build(reduce_all([]), 1.0).deployment), alerts=(alert, alert)))
    assert found["k3ctl_alerts", severity] == 2.0
    assert found["k3ctl_alert", "stalled", severity, "x"] == 1.0


def test_acceptance_by_position_and_a_server_that_went_away() -> None:
    state = reduce_all([read(1, num_requests_running=1), FeedFailed(2.0, URL, "metrics", "refused")])
    view = rules.judge(build(state, 30.0))
    load = replace(view.load, acceptance=Acceptance(3, 100, 2.5, (0.8, 0.5, 0.2), "last 60 s"))
    found = values(replace(view, load=load))
    assert found["k3ctl_server_up", URL] == 0.0
    assert [found["k3ctl_acceptance_ratio", str(n)] for n in range(3)] == [0.8, 0.5, 0.2]
    assert ("k3ctl_alert", "server-down", "fail", URL) in found
