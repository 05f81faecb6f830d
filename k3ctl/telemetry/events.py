"""What feeds say. Every event carries when it was read (``t``, Unix seconds) and who said it (``source``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from k3ctl.server.prometheus import Page
from k3ctl.server.witness import WorkerPage
from k3ctl.telemetry.gpus import GpuFinding, GpuSample


@dataclass(frozen=True)
class MetricsRead:
    """A metrics page of the server at ``source`` (its base URL)."""

    t: float
    source: str
    page: Page


@dataclass(frozen=True)
class FeedFailed:
    """A feed could not be read. ``feed`` is ``metrics``, ``witness``, ``gpus``, ``run`` or ``bench``."""

    t: float
    source: str
    feed: str
    reason: str


@dataclass(frozen=True)
class WitnessRead:
    """The witness table of the server at ``source``."""

    t: float
    source: str
    workers: tuple[WorkerPage, ...]


@dataclass(frozen=True)
class GpusRead:
    """The GPUs of the node ``source``, and what doctor's rules say about them."""

    t: float
    source: str
    gpus: tuple[GpuSample, ...]
    findings: tuple[GpuFinding, ...] = ()


@dataclass(frozen=True)
class StageChanged:
    """A start-up stage of the run ``source``: ``state`` is ``running``, ``done`` or ``failed``.

    ``done`` of ``total`` count the stage's own unit (weight files, captured graphs); both 0 when it has none.
    """

    t: float
    source: str
    stage: str
    state: str
    done: int = 0
    total: int = 0
    detail: str = ""


@dataclass(frozen=True)
class IncidentFound:
    """A finding of triage in the log of the run ``source``."""

    t: float
    source: str
    rule: str
    severity: str
    title: str
    action: str = ""


@dataclass(frozen=True)
class BenchReported:
    """A line of a benchmark's event stream; ``data`` keeps its own keys (``kind`` and that kind's fields)."""

    t: float
    source: str
    data: Mapping[str, Any] = field(default_factory=dict)


Event = Union[MetricsRead, FeedFailed, WitnessRead, GpusRead, StageChanged, IncidentFound, BenchReported]  # noqa: UP007
