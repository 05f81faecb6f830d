"""The monitor as a page for Prometheus: the feeds are read as on the screen, a scrape gives the view of that moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from k3ctl.deployment import Deployment
from k3ctl.errors import UsageError
from k3ctl.feeds.plain import Reading
from k3ctl.feeds.sources import Feed
from k3ctl.telemetry import rules
from k3ctl.telemetry.exposition import SERIES, Sample, samples
from k3ctl.telemetry.view import View, build

HOST = "127.0.0.1"
TAKE_IN_S = 1.0
"""How often events are taken in between scrapes: nobody may scrape."""


class Page(Collector):
    """What a scrape gives: the samples of ``view()``."""

    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view

    def describe(self) -> Iterable[Metric]:
        """Nothing: asking would read the view before there is one."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """One family per series that has a value."""
        by_name: dict[str, list[Sample]] = {}
        for sample in samples(self._view()):
            by_name.setdefault(sample.name, []).append(sample)
        for name, found in by_name.items():
            series = SERIES[name]
            kind = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
            family = kind(name, series.help, labels=series.labels)
            for sample in found:
                family.add_metric(list(sample.labels), sample.value)
            yield family


def address(text: str) -> tuple[str, int]:
    """``:9401``, ``9401`` or ``HOST:9401``; without a host it is this machine's own. Raises UsageError."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or HOST
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"`{text}` is no address to listen on", hint="for example `--export :9401`")
    return host, int(port)


def serve(
    feeds: Sequence[Feed],
    deployment: Deployment,
    where: str,
    *,
    told: Callable[[str], None],
    stop: threading.Event | None = None,
) -> None:
    """Serve the page at ``where`` until interrupted.

    Raises:
        UsageError: nobody can listen there.
    """
    host, port = address(where)
    registry = CollectorRegistry()
    with Reading(feeds) as reading:
        registry.register(Page(lambda: rules.judge(build(reading.state(), time.time(), deployment))))
        try:
            server, thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}:{port}: {error.strerror or error}", hint="give another port"
            ) from error
        told(f"metrics at http://{f'[{host}]' if ':' in host else host}:{port}/metrics; Ctrl-C ends")
        try:
            over = stop or threading.Event()
            while not over.wait(TAKE_IN_S):
                reading.state()
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
