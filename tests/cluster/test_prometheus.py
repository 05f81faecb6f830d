"""A real Prometheus scrapes the monitor's page; every panel of the dashboard and every alert rule is asked of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from k3ctl.deployment import Deployment
from k3ctl.engine import procs
from k3ctl.feeds import export
from k3ctl.server.prometheus import Page, parse
from k3ctl.signals import PREFIX
from k3ctl.telemetry.engines import WANTED
from k3ctl.telemetry.events import Event, FeedFailed, GpusRead, MetricsRead
from k3ctl.telemetry.gpus import GpuFinding, GpuSample
from tests.telemetry.feeding import FIXTURES, URL

pytestmark = pytest.mark.cluster

FOLDER = Path(__file__).parents[2] / "observability"
GPU = GpuSample(
    0, name="GB300", memory_used_bytes=3, memory_total_bytes=4, power_w=700.0, power_limit_w=1400.0, sm_mhz=1900,
    temperature_c=50, utilization_percent=50, links=18, links_up=17, nvlink_tx_bytes=0, nvlink_rx_bytes=0,
    nvlink_errors=2, throttle=("HW thermal",), ecc_uncorrected=0,
)  # fmt: skip
DOWN = GpuFinding("nvlink.links-down", "fail", "links are down", "17 of 18", "doctor", "GPU 0")
NOT_IN_THE_FIXTURE = {"k3ctl_acceptance_golden_length"}


def test_the_alert_rules_pass_promtool() -> None:
    _need("promtool")
    for words in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts-test.yaml"]):
        done = subprocess.run(["promtool", *words], cwd=FOLDER, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


class Moving:
    """A server and two nodes whose counters grow, and a third node that is away."""

    interval_s = 0.5

    def __init__(self) -> None:
        self._sent = 0

    def _page(self) -> Page:
        steps = self._sent / 1e7
        witness = "".join(
            f'k3_{what}_total{{kind="decode",mode="full",path="{path}",rank="0",reason="{reason}",slots=""}} {steps}\n'
            for what in ("steps", "rows", "tokens")
            for path, reason in (("specialized", ""), ("standard", "rows-over-limit"))
        )
        text = (FIXTURES / "metrics-healthy-c1-k7-al3.84.prom").read_text()
        return parse((text + witness).encode(), WANTED, required_prefix=PREFIX)

    def read(self) -> Sequence[Event]:
        now = time.time()
        self._sent += 10**9
        gpus = (replace(GPU, nvlink_tx_bytes=self._sent, nvlink_rx_bytes=self._sent), replace(GPU, index=1))
        nodes = [GpusRead(now, f"tray{number}", gpus, (DOWN,)) for number in range(2)]
        return [MetricsRead(now, URL, self._page()), *nodes, FeedFailed(now, "tray2", "gpus", "gone")]

    def close(self) -> None:
        pass


def _need(tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"`{tool}` is not installed: the package `prometheus` of Debian")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address, once it has scraped the page for a while."""
    _need("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    page, own = procs.free_port("127.0.0.1"), procs.free_port("127.0.0.1")
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    job = config["scrape_configs"][0]
    job["static_configs"][0]["targets"] = [f"127.0.0.1:{page}"]
    config["global"] = {"evaluation_interval": "1s"}
    job["scrape_interval"] = "1s"
    config["rule_files"] = [str(FOLDER / "alerts.yaml")]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    stop, said = threading.Event(), threading.Event()
    thread = threading.Thread(
        target=lambda: export.serve(
            [Moving()], Deployment(), f":{page}", told=lambda _: said.set(), stop=stop
        )
    )
    thread.start()
    assert said.wait(20)
    words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    server = subprocess.Popen(
        ["prometheus", *words, f"--web.listen-address=127.0.0.1:{own}"], stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{own}"
    try:
        deadline = time.monotonic() + 90
        while len(ask(address, 'count_over_time(up{job="k3ctl"}[1m]) > 8')) < 1:
            assert time.monotonic() < deadline and server.poll() is None
            time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait(30)
        stop.set()
        thread.join(20)


def ask(address: str, query: str) -> list[dict[str, object]]:
    try:
        query = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"{address}/api/v1/query?{query}", timeout=10) as answer:
            return list(json.load(answer)["data"]["result"])
    except (OSError, urllib.error.URLError):
        return []


def test_every_panel_of_the_dashboard_has_data(prometheus: str) -> None:
    panels = json.loads((FOLDER / "grafana-dashboard.json").read_text())["panels"]
    empty = []
    for panel in panels:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "30s")
            if not ask(prometheus, query) and not any(name in query for name in NOT_IN_THE_FIXTURE):
                empty.append((panel["title"], query))
    assert empty == []


def test_the_scraped_values_are_the_views(prometheus: str) -> None:
    assert [one["value"][1] for one in ask(prometheus, 'k3ctl_gpu_power_watts{node="tray1", gpu="1"}')] == [
        "700"
    ]
    sent = ask(prometheus, 'k3ctl_gpu_nvlink_transmit_bytes_per_second{node="tray0", gpu="0"}')
    assert 0.5e9 < float(sent[0]["value"][1]) < 4e9


def test_the_node_that_is_away_is_pending_as_an_alert_and_the_others_are_not(prometheus: str) -> None:
    found = ask(prometheus, 'ALERTS{alertname="K3NodeUnread"}')
    assert [one["metric"]["node"] for one in found] == ["tray2"]
