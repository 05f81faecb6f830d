"""Play a recording: a clock that can run at any speed, pause and jump, and the state at that clock."""

from __future__ import annotations

from k3ctl.telemetry.recording import Recording
from k3ctl.telemetry.reducer import State, reduce

CHECKPOINT_EVERY = 128
"""Events between two kept states: states are immutable, so jumping back replays at most this many."""


class Player:
    """A position in a recording: ``at`` in Unix seconds; ``speed`` in recording seconds per second."""

    def __init__(self, recording: Recording, speed: float = 1.0) -> None:
        self.recording = recording
        self.speed = speed
        self.paused = False
        self.at = recording.start
        self.state = State()
        self._next = 0
        self._checkpoints: list[State] = [self.state]
        self._run_to(self.at)

    @property
    def finished(self) -> bool:
        """The end is reached."""
        return self.at >= self.recording.end

    @property
    def position_s(self) -> float:
        """Seconds since the recording's start."""
        return self.at - self.recording.start

    @property
    def length_s(self) -> float:
        """Seconds that the recording covers."""
        return self.recording.end - self.recording.start

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` of the viewer's time pass."""
        if not self.paused:
            self._run_to(self.at + seconds * self.speed)

    def seek(self, seconds: float) -> None:
        """Jump by ``seconds`` of recording time, back or forth."""
        self.seek_to(self.position_s + seconds)

    def seek_to(self, position_s: float) -> None:
        """Jump to a position; positions outside the recording are its ends."""
        target = self.recording.start + position_s
        if target < self.at:
            self._rewind(target)
        self._run_to(target)

    def _run_to(self, target: float) -> None:
        self.at = min(max(target, self.recording.start), self.recording.end)
        events = self.recording.events
        while self._next < len(events) and events[self._next].t <= self.at:
            self.state = reduce(self.state, events[self._next])
            self._next += 1
            if self._next % CHECKPOINT_EVERY == 0 and self._next // CHECKPOINT_EVERY == len(
                self._checkpoints
            ):
                self._checkpoints.append(self.state)

    def _rewind(self, target: float) -> None:
        """Back to the last checkpoint whose events all lie at or before ``target``."""
        events = self.recording.events
        mark = min(self._next // CHECKPOINT_EVERY, len(self._checkpoints) - 1)
        while mark > 0 and events[mark * CHECKPOINT_EVERY - 1].t > target:
            mark -= 1
        self._next = mark * CHECKPOINT_EVERY
        self.state = self._checkpoints[mark]
        self.at = self.recording.start
