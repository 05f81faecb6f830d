"""Every Markdown page of the project, and what is in it."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "k3ctl/**/*.md", "runtime/**/*.md", "profiles/**/*.md")
    for path in ROOT.glob(pattern)
)
FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(<?([^()<>\s]+(?:\([^()\s]*\))?)>?(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)?$")


def name(path: Path) -> str:
    """The page's path from the root, for test ids."""
    return path.relative_to(ROOT).as_posix()


def split(text: str) -> tuple[list[str], list[str]]:
    """Lines of prose and lines of code: fenced, or indented by four after a blank line or other code."""
    prose: list[str] = []
    code: list[str] = []
    fence, indented, blank = "", False, True
    for line in text.splitlines():
        mark = FENCE.match(line)
        if fence:
            fence = "" if mark and mark[1].startswith(fence) else fence
            if fence:
                code.append(line)
        elif mark:
            fence = mark[1]
        else:
            indented = line.startswith("    ") and (blank or indented)
            (code if indented else prose).append(line)
            blank = not line.strip()
    return prose, code


def links(text: str) -> list[str]:
    """Targets of all links and pictures in the prose, code in backticks left out."""
    prose = re.sub(r"`[^`\n]*`", "``", "\n".join(split(text)[0]))
    return LINK.findall(prose)


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors that GitHub gives the headings of a page, a repeated heading numbered."""
    seen: Counter[str] = Counter()
    found = set()
    for line in split(path.read_text(encoding="utf-8"))[0]:
        if heading := HEADING.match(line):
            slug = slugged(heading[1])
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return frozenset(found)


def slugged(heading: str) -> str:
    """A heading's anchor: links shown as their text, lower case, no punctuation, hyphens for spaces."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
