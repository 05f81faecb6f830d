"""What the engine is doing while it starts, read from its log.

The stages and their messages are ``k3ctl.triage.start``'s; lines may come through any carrier that triage reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from k3ctl.triage.records import parse
from k3ctl.triage.start import ORDER, TITLES, stage_of

__all__ = ["TITLES", "Stage", "StageTracker", "duration"]

_COUNT = re.compile(r"\b(\d{1,9})/(\d{1,9})\b")
_LEFT = re.compile(r"<\s{0,4}(?:(\d{1,4}):)?(\d{1,4}):(\d\d)")


@dataclass(frozen=True)
class Stage:
    """Where a start stands. ``done`` of ``total`` steps, ``eta_s`` seconds to the end of this stage."""

    name: str
    done: int | None = None
    total: int | None = None
    eta_s: float | None = None
    detail: str = ""

    def __str__(self) -> str:
        text = TITLES[self.name]
        if self.total:
            text += f" {self.done}/{self.total}"
        if self.eta_s is not None and self.done != self.total:
            text += f", about {duration(self.eta_s)} left"
        return text


class StageTracker:
    """Feeds on log lines, gives a ``Stage`` whenever the start moved on."""

    def __init__(self) -> None:
        self.stage: Stage | None = None
        self._first: tuple[str, int, float] | None = None

    def feed(self, line: str, now: float) -> Stage | None:
        """The new stage if ``line`` (seen at ``now`` seconds) changed it, else None."""
        record = parse(line)
        text = record.text.strip() if record else ""
        name = stage_of(text)
        if name is None or self._behind(name):
            return None
        stage, last = self._count(name, text, now), self.stage
        if last is not None and (stage.name, stage.done, stage.total) == (last.name, last.done, last.total):
            return None
        self.stage = stage
        return stage

    def _behind(self, name: str) -> bool:
        """Ranks report late: an earlier stage than the present one is not a step back."""
        return self.stage is not None and ORDER.index(name) < ORDER.index(self.stage.name)

    def _count(self, name: str, text: str, now: float) -> Stage:
        found = None if name in ("import", "configure") else _COUNT.search(text)
        if found is None:
            return Stage(name, detail=text[:160])
        done, total = int(found[1]), int(found[2])
        if self.stage is not None and self.stage.name == name and self.stage.total == total:
            done = max(done, self.stage.done or 0)
        if self._first is None or self._first[0] != f"{name}/{total}":
            self._first = (f"{name}/{total}", done, now)
        return Stage(name, done, total, self._eta(done, total, text, now), text[:160])

    def _eta(self, done: int, total: int, text: str, now: float) -> float | None:
        """From the pace seen here; before there is one, what the progress bar itself says."""
        assert self._first is not None
        _, first, since = self._first
        if done > first and now > since:
            return (total - done) * (now - since) / (done - first)
        if left := _LEFT.search(text):
            hours, minutes, seconds = (int(part or 0) for part in left.groups())
            return float(hours * 3600 + minutes * 60 + seconds)
        return None


def duration(seconds: float) -> str:
    """``7 s``, ``4 min``, ``1 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
