"""Bars of text: a share reads from its length, with or without colour."""

from __future__ import annotations

from textual.content import Content

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(share: float, width: int, style: str = "$primary", mark: float | None = None) -> Content:
    """A bar of ``width`` cells filled to ``share`` (0 to 1, clipped); ``mark`` puts a ``┃`` elsewhere."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    full, part = divmod(eighths, 8)
    cells = ["█"] * full + ([_EIGHTHS[part]] if part else [])
    filled = len(cells)
    cells += ["╌"] * (width - filled)
    if mark is None or width == 0:
        return Content.assemble(
            *_solid("".join(cells[:filled]), style), ("".join(cells[filled:]), "$secondary")
        )
    at = min(width - 1, max(0, round(min(1.0, max(0.0, mark)) * width) - 1))
    cells[at] = "┃"
    parts = [
        *_solid("".join(cells[: min(at, filled)]), style),
        ("".join(cells[min(at, filled) : at]), "$secondary"),
        ("┃", "bold $accent"),
        *_solid("".join(cells[at + 1 : max(at + 1, filled)]), style),
        ("".join(cells[max(at + 1, filled) :]), "$secondary"),
    ]
    return Content.assemble(*parts)


def _solid(cells: str, style: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Full cells carry their colour as background too, so that bars below each other join."""
    full = cells.rstrip(_EIGHTHS[:-1])
    return (full, f"{style} on {style}"), (cells[len(full) :], style)


def rows(*lines: Content | str) -> Content:
    """Lines below each other."""
    return Content("\n").join([line if isinstance(line, Content) else Content(line) for line in lines])


def fit(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells, cut with an ellipsis."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
