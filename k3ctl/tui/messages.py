"""Messages to the app. Feed threads reach the screen in no other way."""

from __future__ import annotations

from collections.abc import Sequence

from textual.message import Message

from k3ctl.telemetry.events import Event


class ScreenReady(Message):
    """A screen can show a view."""


class EventsRead(Message):
    """A feed has read something."""

    def __init__(self, events: Sequence[Event]) -> None:
        super().__init__()
        self.events = events
