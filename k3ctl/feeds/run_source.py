"""The run feed: start-up stages and incidents of a `k3ctl serve` run, from its run directory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from k3ctl.engine import logs, rundir
from k3ctl.engine.stages import TITLES, Stage, StageTracker
from k3ctl.errors import K3Error
from k3ctl.telemetry.events import Event, FeedFailed, IncidentFound, StageChanged
from k3ctl.triage.scan import scan

TRIAGE_EVERY_S = 10.0
TRIAGE_LIMIT_BYTES = 16 << 20
"""A log larger than this is triaged only when the run has failed."""


class RunFeed:
    """Follows one run: its log for stages, ``run.json`` for its state, triage for incidents."""

    interval_s = 1.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = logs.LogFollower(path / "engine.log")
        self._tracker = StageTracker()
        self._stage: Stage | None = None
        self._state = ""
        self._findings = 0
        self._incidents: set[str] = set()
        self._triaged_at = 0.0
        self._triaged_bytes = 0

    def read(self) -> Sequence[Event]:
        """Stages that moved, findings and incidents that are new."""
        now = time.time()
        try:
            run = rundir.read(self._path)
        except K3Error as error:
            return [FeedFailed(now, self._path.name, "run", error.message)]
        events = [*self._stages(now), *self._run(run, now)]
        if run.state == "failed" or now - self._triaged_at >= TRIAGE_EVERY_S:
            events += self._triage(run, now)
        return events

    def close(self) -> None:
        """Nothing is held."""

    def _stages(self, now: float) -> Iterator[StageChanged]:
        for line in self._log.lines():
            stage = self._tracker.feed(line, now)
            if stage is None:
                continue
            if self._stage is not None and self._stage.name != stage.name:
                yield self._changed(self._stage, "done", now)
            self._stage = stage
            yield self._changed(stage, "running", now)

    def _changed(self, stage: Stage, state: str, now: float) -> StageChanged:
        detail = TITLES[stage.name]
        return StageChanged(
            now, self._path.name, stage.name, state, stage.done or 0, stage.total or 0, detail
        )

    def _run(self, run: rundir.Run, now: float) -> Iterator[Event]:
        for found in run.findings[self._findings :]:
            kind, text = str(found.get("kind", "finding")), str(found.get("text", ""))
            yield IncidentFound(float(found.get("at", now)), run.id, kind, "fail", text)
        self._findings = len(run.findings)
        state = run.status()
        if state == self._state:
            return
        self._state = state
        if state == "ready":
            if self._stage is not None:
                yield self._changed(self._stage, "done", now)
            yield StageChanged(now, run.id, "ready", "done", detail=run.url)
        elif state in {"failed", "lost"}:
            yield StageChanged(
                now, run.id, self._stage.name if self._stage else "start", "failed", detail=run.reason
            )
        elif state == "stopped":
            yield StageChanged(now, run.id, "stopped", "done", detail=run.reason)

    def _triage(self, run: rundir.Run, now: float) -> list[Event]:
        """Incidents that were not there before; the log is read again only when it grew."""
        parts = logs.parts(run.engine_log)
        size = sum(part.stat().st_size for part in parts if part.exists())
        self._triaged_at = now
        if size == self._triaged_bytes or (size > TRIAGE_LIMIT_BYTES and run.state != "failed"):
            return []
        self._triaged_bytes = size
        found: list[Event] = []
        try:
            incidents = scan(parts, one_log=True, whole=run.state == "failed").incidents
        except OSError:
            return []
        for incident in incidents:
            if incident.severity == "info" or incident.rule.id in self._incidents:
                continue
            self._incidents.add(incident.rule.id)
            severity = "fail" if incident.severity == "error" else "warn"
            found.append(
                IncidentFound(now, run.id, incident.rule.id, severity, incident.title, incident.action)
            )
        return found
