"""Tells a start on stderr."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from k3ctl import output

if TYPE_CHECKING:
    from k3ctl.engine.stages import Stage

REPEAT_S = 10.0
"""How often a moving counter is told where stderr is no terminal."""


class Narrator:
    """Tells a start on stderr: a line per stage, a counter in place on a terminal."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._stage = ""
        self._told = 0.0

    def line(self, text: str) -> None:
        """One line."""
        output.note(text)

    def stage(self, stage: Stage) -> None:
        """A new stage, or a counter that moved."""
        now = time.monotonic()
        text = f"{now - self._since:6.1f} s  {stage}"
        if stage.name != self._stage or now - self._told > REPEAT_S:
            output.note(text)
            self._stage, self._told = stage.name, now
        else:
            output.progress(text)
