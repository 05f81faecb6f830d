"""`k3ctl monitor --export`: a page that Prometheus reads, and rules and a dashboard that name nothing else."""

from __future__ import annotations

import json
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from k3ctl import cli
from k3ctl.deployment import Deployment
from k3ctl.engine import procs
from k3ctl.errors import UsageError
from k3ctl.feeds import export
from k3ctl.telemetry.events import Event, GpusRead
from k3ctl.telemetry.exposition import SERIES
from k3ctl.telemetry.gpus import GpuSample
from tests.telemetry.feeding import read

FOLDER = Path(__file__).parents[2] / "observability"


class Steady:
    """A feed that says the same again and again."""

    interval_s = 0.1

    def __init__(self, *events: Event) -> None:
        self._events = events
        self.closed = False

    def read(self) -> Sequence[Event]:
        return self._events

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def page() -> Iterator[str]:
    """Address of a page over two steady feeds."""
    port = procs.free_port("127.0.0.1")
    feeds = [
        Steady(read(1, num_requests_running=3, generation_tokens_total=5)),
        Steady(GpusRead(1.0, 'tray"0\n', (GpuSample(0, nvlink_errors=7, power_w=1.0),))),
    ]
    stop, said = threading.Event(), threading.Event()

    def work() -> None:
        export.serve(feeds, Deployment(), f":{port}", told=lambda _: said.set(), stop=stop)

    thread = threading.Thread(target=work)
    thread.start()
    assert said.wait(20)
    yield f"http://127.0.0.1:{port}/metrics"
    stop.set()
    thread.join(20)
    assert not thread.is_alive() and all(feed.closed for feed in feeds)
    assert procs.port_is_free("127.0.0.1", port)


def families(page: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    with urllib.request.urlopen(page, timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_the_page_is_read_by_prometheus_own_parser_whatever_a_label_holds(page: str) -> None:
    deadline = threading.Event()
    for _ in range(100):
        found = families(page)
        if "k3ctl_gpu_power_watts" in found and "k3ctl_requests_running" in found:
            break
        deadline.wait(0.1)
    assert set(found) <= set(SERIES)
    assert found["k3ctl_requests_running"] == [({}, 3.0)]
    assert found["k3ctl_gpu_nvlink_errors_total"] == [({"node": 'tray"0\n', "gpu": "0"}, 7.0)]


@pytest.mark.parametrize(
    ("text", "where"),
    [(":9401", ("127.0.0.1", 9401)),
     ("9401", ("127.0.0.1", 9401)), ("0.0.0.0:1", ("0.0.0.0", 1)), ("[::1]:2", ("::1", 2))],
)  # fmt: skip
def test_addresses(text: str, where: tuple[str, int]) -> None:
    assert export.address(text) == where


@pytest.mark.parametrize("text", ["", ":", "host", ":0", ":65536", ":-1", ":9401/metrics", "http://a:b"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        export.address(text)
    assert "--export :9401" in (caught.value.hint or "")


def test_a_port_that_is_taken_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert cli.main(["monitor", "--no-gpus", "--url", "127.0.0.1:9", "--export", f":{port}"]) == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err


@pytest.mark.parametrize("other", ["--once", "--json", "--replay=x", "--record=x"])
def test_other_forms_of_the_monitor_exclude_it(other: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["monitor", "--export", ":9401", other]) == 2
    assert "--export serves a page" in "".join(capsys.readouterr())


def expressions() -> list[str]:
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    dashboard = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    found = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return found + [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_rules_and_dashboard_name_only_series_that_the_page_has_and_labels_that_these_have() -> None:
    assert len(expressions()) > 15
    for expression in expressions():
        for name, labels in re.findall(r"(k3ctl_\w+)(?:\{([^}]*)\})?", expression):
            assert name in SERIES, expression
            used = set(re.findall(r"(\w+)\s*[!=]", labels)) - {"job", "instance"}
            assert used <= set(SERIES[name].labels), expression


def test_panels_do_not_overlap_and_fit_grafanas_24_columns() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads((FOLDER / "grafana-dashboard.json").read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not taken & cells, panel["title"]
        taken |= cells
