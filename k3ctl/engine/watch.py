"""Is the engine alive, and does it get on? A state machine over observations, with the clock passed in.

``/health`` proves nothing: it stays 200 for a minute after a rank was killed. Proof of life is work that gets done,
or, when there is no work, an answered canary request. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3ctl.engine.client import Load
from k3ctl.signals import STALLED_AFTER_S, stalled

STALL_S = STALLED_AFTER_S
IDLE_S = 60.0
"""Without work for this long, a canary asks for a sign of life."""


@dataclass(frozen=True)
class WatchFinding:
    """Something an operator should know. ``evidence`` asks for stacks and log tails to be saved."""

    kind: str
    text: str
    evidence: bool = False


class Watch:
    """Feed it what was seen; it says what to report and when to send a canary."""

    def __init__(self, now: float, *, stall_s: float = STALL_S, idle_s: float = IDLE_S) -> None:
        self._stall_s = stall_s
        self._idle_s = idle_s
        self._progress: tuple[float, ...] | None = None
        self._moved_at = now
        self._alive_at = now
        self._stalled = False
        self._silent = False
        self._blind = False

    def saw_load(self, load: Load, now: float) -> WatchFinding | None:
        """Metrics were read."""
        self._blind = False
        if load.progress != self._progress or load.running == 0:
            if load.progress != self._progress and self._progress is not None:
                self._alive_at = now
            self._progress, self._moved_at = load.progress, now
            if self._stalled:
                self._stalled = False
                return WatchFinding("resumed", "the engine gets on again")
            return None
        flat_s = now - self._moved_at
        if self._stalled or not stalled(load.running, flat_s, self._stall_s):
            return None
        self._stalled = True
        text = f"{load.running:.0f} requests run and nothing got done for {flat_s:.0f} s"
        return WatchFinding("stalled", text, evidence=True)

    def saw_no_metrics(self, reason: str) -> WatchFinding | None:
        """Metrics could not be read, or were none. Told once; canaries go on."""
        if self._blind:
            return None
        self._blind = True
        return WatchFinding("no-metrics", f"the load cannot be read: {reason}")

    def wants_canary(self, now: float) -> bool:
        """Whether it is time to ask for a sign of life: nothing got done lately, and no request is to blame."""
        return not self._stalled and now - self._alive_at >= self._idle_s

    def saw_answer(self, now: float) -> WatchFinding | None:
        """A canary was answered."""
        self._alive_at = now
        if self._silent:
            self._silent = False
            return WatchFinding("answers", "the engine answers again")
        return None

    def saw_silence(self, reason: str, now: float) -> WatchFinding | None:
        """A canary was not answered. Told once per silence."""
        self._alive_at = now
        if self._silent:
            return None
        self._silent = True
        return WatchFinding("not-answering", f"a canary request failed: {reason}", evidence=True)
