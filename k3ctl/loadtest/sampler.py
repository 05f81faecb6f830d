"""Watches the server while the client loads it: one counter sample a second, in a thread of its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from k3ctl.loadtest import scrape
from k3ctl.loadtest.scrape import Sample
from k3ctl.server.client import Client

INTERVAL_S = 1.0


class Sampler:
    """``with Sampler(…)``: raw pages at both ends, ``samples.jsonl`` in between.

    A server that does not answer leaves a gap in the samples, never an error: the client's result says
    enough.
    """

    def __init__(
        self, client: Client, raw: Path, *, on_sample: Callable[[Sample], None] | None = None
    ) -> None:
        self._client, self._raw, self._on_sample = client, raw, on_sample
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="k3ctl-sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._snapshot("start")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._snapshot("end")

    def _snapshot(self, moment: str) -> None:
        metrics, witness = scrape.fetch(self._client)
        if metrics is not None:
            (self._raw / f"metrics-{moment}.prom").write_text(metrics, encoding="utf-8")
            self._record(
                scrape.sample_metrics(metrics, ts=time.time(), mono=time.monotonic(), witness=witness)
            )
        if witness is not None:
            (self._raw / f"witness-{moment}.json").write_text(json.dumps(witness, indent=1), encoding="utf-8")

    def _loop(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            sample = scrape.take(self._client)
            if sample is not None:
                self._record(sample)

    def _record(self, sample: Sample) -> None:
        with (self._raw / "samples.jsonl").open("a", encoding="utf-8") as file:
            file.write(sample.as_json() + "\n")
        if self._on_sample:
            self._on_sample(sample)


def read(raw: Path) -> list[Sample]:
    """The samples of a raw directory, oldest first."""
    path = raw / "samples.jsonl"
    if not path.is_file():
        return []
    return [
        Sample.from_dict(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line
    ]
