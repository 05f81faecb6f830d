"""What pages show as output of `k3ctl plan` is what it prints: it needs no hardware and no time."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.in_process import k3ctl

from .pages import PAGES, name, split


def sessions() -> list[tuple[str, str, list[str]]]:
    """Page, command and shown lines of every `$ k3ctl plan` that names its hardware or its profile."""
    found = []
    for page in PAGES:
        lines = split(page.read_text(encoding="utf-8"))[1]
        for at, line in enumerate(lines):
            if re.match(r"\$ k3ctl plan \S", line):
                end = next(
                    (i for i in range(at + 1, len(lines)) if lines[i].startswith(("$ ", "k3ctl "))),
                    len(lines),
                )
                found.append((name(page), line.removeprefix("$ "), lines[at + 1 : end]))
    return found


@pytest.mark.parametrize(
    ("page", "command", "shown"), sessions(), ids=lambda it: it if isinstance(it, str) else ""
)
def test_a_shown_plan_is_what_is_printed(
    page: str, command: str, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = []
    for width in ("110", "200"):  # pages show what a terminal of one of these widths shows
        monkeypatch.setenv("COLUMNS", width)
        printed += [" ".join(line.split()) for line in k3ctl(*shlex.split(command)[1:]).stdout.splitlines()]
    for line in shown:
        text = " ".join(line.split())
        if text.endswith("…"):
            assert any(text.removesuffix("…").rstrip(" ,") in whole for whole in printed), text
        else:
            assert text in printed, text


def test_plans_are_shown() -> None:
    assert len(sessions()) >= 3
