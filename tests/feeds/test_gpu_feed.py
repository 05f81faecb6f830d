"""The GPU feed: readings of every saved machine, judged by doctor's rules, whatever the driver refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from k3ctl.checks import RULES
from k3ctl.feeds.gpu_source import GpuFeed
from k3ctl.gpus.live import LiveReader
from k3ctl.telemetry.events import FeedFailed, GpusRead
from tests.feeds.fake_nvml import FakeNvml

FIXTURES = Path(__file__).parent.parent / "fixtures"


def node(name: str) -> dict[str, Any]:
    first: dict[str, Any] = json.loads((FIXTURES / name).read_text())["nodes"][0]
    return first


def read(nv: Any, times: int = 1) -> Any:
    feed = GpuFeed(LiveReader(nv), node="node0")
    for _ in range(times):
        (event,) = feed.read()
    feed.close()
    return event


@pytest.mark.parametrize(
    ("fixture", "expected"),
    [
        ("nvml-gb300-nvl72-tray.json", set()),
        ("nvml-gb300-gpu-lost.json", {"gpu.lost"}),
        ("nvml-gb300-links-down.json", {"fabric.degraded", "nvlink.links-down"}),
        (
            "nvml-gb300-row-remap.json",
            {"memory.remap-pending", "memory.remap-failure", "gpu.drain-and-reset"},
        ),
        ("nvml-hgx-b300-throttled.json", {"clock.hw-thermal-slowdown"}),
        ("nvml-gb300-fabric-in-progress.json", {"fabric.in-progress"}),
        ("nvml-h200-x2-vm.json", set()),
        ("nvml-dgx-spark.json", set()),
    ],
)
def test_a_live_reading_finds_what_doctor_finds(fixture: str, expected: set[str]) -> None:
    event = read(FakeNvml(node(fixture)), times=2)
    assert isinstance(event, GpusRead)
    assert {finding.rule for finding in event.findings} == expected
    assert expected <= set(RULES)


def test_memory_of_a_served_model_is_no_alert() -> None:
    nv = FakeNvml(node("nvml-gb300-nvl72-tray.json"))
    nv.node["gpus"][0]["memory"]["used"] = 270_000_000_000
    event = read(nv)
    assert isinstance(event, GpusRead)
    assert not event.findings


def test_the_second_reading_shows_what_changed() -> None:
    nv = FakeNvml(node("nvml-gb300-nvl72-tray.json"))
    feed = GpuFeed(LiveReader(nv), node="node0")
    feed.read()
    gpu = nv.node["gpus"][1]
    gpu["memory"]["used"], gpu["power_mw"]["draw"], gpu["links"][3]["state"] = 270_000_000_000, 912_000, 0
    nv.traffic_kib, nv.link_errors = 5_000_000, 3
    (event,) = feed.read()
    assert isinstance(event, GpusRead)
    sample = event.gpus[1]
    assert (sample.memory_used_bytes, sample.power_w) == (270_000_000_000, 912.0)
    assert (sample.links_up, sample.links) == (17, 18)
    assert (sample.nvlink_tx_bytes, sample.nvlink_errors) == (5_000_000 * 1024, 3)
    assert sample.nvlink_limit_bytes_s == pytest.approx(17 * 53.125e9)
    assert "nvlink.links-down" in {finding.rule for finding in event.findings}


def test_values_that_the_driver_refuses_are_unknown_not_zero() -> None:
    event = read(FakeNvml(node("nvml-dgx-spark.json")))
    sample = event.gpus[0]
    assert (sample.memory_used_bytes, sample.power_limit_w, sample.links) == (None, None, None)
    assert sample.power_w == 4.5


@pytest.mark.parametrize("fixture", ["nvml-no-driver.json", "nvml-driver-library-mismatch.json"])
def test_a_machine_without_a_working_driver_is_a_stated_absence(fixture: str) -> None:
    saved = node(fixture)
    event = read(FakeNvml(saved))
    assert isinstance(event, FeedFailed)
    assert saved["nvml"]["error"]["na"] in event.reason


def test_a_missing_binding_is_a_stated_absence() -> None:
    event = read(None)
    assert isinstance(event, FeedFailed)
    assert "BindingNotInstalled" in event.reason


def test_closing_releases_nvml() -> None:
    nv = FakeNvml(node("nvml-gb300-nvl72-tray.json"))
    read(nv)
    assert nv.inits == 0
