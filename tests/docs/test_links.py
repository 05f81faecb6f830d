"""Every internal link leads to a file of the project, and every anchor to a heading."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest

from .pages import PAGES, ROOT, anchors, links, name, slugged, split

DOCS = ROOT / "docs"


def broken(path: Path, text: str) -> list[str]:
    """The links of a page that lead nowhere."""
    return [target for target in links(text) if not resolves(path, target)]


def resolves(path: Path, target: str) -> bool:
    if "://" in target or target.startswith("mailto:"):
        return True
    file, _, anchor = unquote(target).partition("#")
    to = (path.parent / file).resolve() if file else path
    if not to.exists() or not to.is_relative_to(ROOT):
        return False
    return not anchor or (to.suffix == ".md" and anchor in anchors(to))


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_every_internal_link_resolves(path: Path) -> None:
    assert broken(path, path.read_text(encoding="utf-8")) == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached, left = set(), [ROOT / "README.md"]
    while left:
        path = left.pop()
        if path in reached or path.suffix != ".md" or not path.is_file():
            continue
        reached.add(path)
        targets = [target.split("#")[0] for target in links(path.read_text(encoding="utf-8"))]
        left += [(path.parent / target).resolve() for target in targets if target and "://" not in target]
    assert sorted(name(path) for path in DOCS.glob("**/*.md") if path not in reached) == []


@pytest.mark.parametrize(
    "link",
    ["gone.md", "README.md#no-such-heading", "#no-such-heading", "../outside.md", "LICENSE#x"],
)
def test_a_broken_link_is_seen(link: str) -> None:
    assert broken(ROOT / "README.md", f"see [`this`]({link}) or [that](README.md)") == [link]


def test_code_holds_no_links() -> None:
    text = "a\n\n    [x](gone.md)\n\n```\n[y](gone.md)\n```\n`[z](gone.md)`\n"
    assert links(text) == []
    assert split(text)[1] == ["    [x](gone.md)", "[y](gone.md)"]


def test_anchors_are_githubs() -> None:
    assert slugged("`k3ctl gate BASE NEW`") == "k3ctl-gate-base-new"
    assert slugged("Which path ran: *proved*, and why?") == "which-path-ran-proved-and-why"
