"""Text that is redrawn only when it changed, without a new layout of the screen."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static


class Line(Static):
    """Text in its place: only a changed number of lines makes the screen lay itself out again."""

    def __init__(self, id: str | None = None, classes: str | None = None) -> None:
        super().__init__("", id=id, classes=classes)
        self._shown: Content | None = None
        self._lines = 0

    def put(self, content: Content | str) -> None:
        """Replace the text; equal text costs nothing."""
        new = content if isinstance(content, Content) else Content(content)
        if new == self._shown:
            return
        lines = new.plain.count("\n") + 1
        self._shown = new
        self.update(new, layout=lines != self._lines)
        self._lines = lines
