"""Framed text, redrawn only when it changed."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Digits

from k3ctl.tui.widgets.bars import rows
from k3ctl.tui.widgets.line import Line


class Panel(Line):
    """A titled frame around lines of text."""

    def __init__(self, title: str, id: str) -> None:
        super().__init__(id=id, classes="panel")
        self.border_title = title

    def show(self, *lines: Content | str) -> None:
        """Replace the text."""
        self.put(rows(*lines))

    @property
    def inner_width(self) -> int:
        """Cells of a line."""
        return max(10, self.content_size.width)


class Tile(Vertical):
    """One big figure with its unit and a few lines below; small screens show the figure as a plain line."""

    def __init__(self, title: str, id: str) -> None:
        super().__init__(id=id, classes="panel tile")
        self._title = title

    def compose(self) -> ComposeResult:
        """The figure twice, as digits and as text; the style sheet shows one of them."""
        yield Digits("", classes="big")
        yield Line(classes="plain")
        yield Line(classes="caption")

    def show(self, figure: str, unit: str, *caption: Content | str) -> None:
        """Replace figure and caption."""
        self.border_title = f"{self._title} · {unit}" if self.app.size.width >= 100 else self._title
        digits = self.query_one(Digits)
        if digits.value != figure:
            digits.update(figure)
        self.query_one(".plain", Line).put(Content.assemble((figure, "bold"), f" {unit}"))
        self.query_one(".caption", Line).put(rows(*caption))

    @property
    def inner_width(self) -> int:
        """Cells of a caption line."""
        return max(10, self.content_size.width)
