"""A table whose cells are text; redrawn cell by cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text
from textual.widgets import DataTable

from k3ctl.output import printable


class Table(DataTable[Text]):
    """Titled columns, numbers to the right. ``show`` changes only what differs."""

    def __init__(self, title: str, id: str) -> None:
        super().__init__(id=id, classes="panel", zebra_stripes=True, cursor_type="none")
        self.border_title = title
        self._titles: tuple[str, ...] = ()

    def show(self, titles: Sequence[str], rows: Mapping[str, Sequence[str]], left: Sequence[str]) -> None:
        """Replace the content; ``left`` names the columns that are aligned to the left."""
        if tuple(titles) != self._titles or [row.value for row in self.rows] != list(rows):
            self._rebuild(titles, rows, left)
            return
        for key, cells in rows.items():
            for title, cell in zip(titles, cells, strict=True):
                new = _cell(cell, title in left)
                if self.get_cell(key, title) != new:
                    self.update_cell(key, title, new, update_width=True)

    def _rebuild(self, titles: Sequence[str], rows: Mapping[str, Sequence[str]], left: Sequence[str]) -> None:
        self.clear(columns=True)
        self._titles = tuple(titles)
        for title in titles:
            self.add_column(_cell(title, title in left), key=title)
        for key, cells in rows.items():
            aligned = (_cell(cell, title in left) for title, cell in zip(titles, cells, strict=True))
            self.add_row(*aligned, key=key)


def _cell(text: str, left: bool) -> Text:
    return Text(printable(text), justify="left" if left else "right")
