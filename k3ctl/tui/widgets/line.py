"""Text that is redrawn only when it changed, without a new layout of the screen."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from k3ctl.output import printable


def safe(content: Content | str) -> Content:
    """What a screen shows of a text from anywhere: letter for letter, and nothing that the terminal would obey."""
    if isinstance(content, str):
        return Content(printable(content))
    plain = content.plain
    shown = printable(plain)
    if shown == plain:
        return content
    # colours are dropped, and styles with them: where they stood is not known any more
    return Content(shown, spans=list(content.spans)) if len(shown) == len(plain) else Content(shown)


class Line(Static):
    """Text in its place: only a changed number of lines makes the screen lay itself out again."""

    def __init__(self, id: str | None = None, classes: str | None = None) -> None:
        super().__init__("", id=id, classes=classes)
        self._shown: Content | None = None
        self._lines = 0

    def put(self, content: Content | str) -> None:
        """Replace the text; equal text costs nothing."""
        new = safe(content)
        if new == self._shown:
            return
        lines = new.plain.count("\n") + 1
        self._shown = new
        self.update(new, layout=lines != self._lines)
        self._lines = lines
