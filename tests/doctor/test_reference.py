"""The reference page is written from the rules, and the examples still look like what the code prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3ctl.checks import RULES, reference
from k3ctl.checks.finding import Area
from tests.in_process import k3ctl

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "reference" / "doctor.md"
EXAMPLES = sorted(path for path in (ROOT / "docs" / "examples").glob("doctor-*.txt"))
REPEATABLE = [path for path in EXAMPLES if "tests/fixtures/" in path.read_text(encoding="utf-8")]


def test_every_rule_is_on_the_page() -> None:
    assert set(Area) == set(reference.AREAS)
    text = PAGE.read_text(encoding="utf-8")
    assert [id_ for id_ in RULES if f"| `{id_}` |" not in text] == []


@pytest.mark.parametrize("path", REPEATABLE, ids=lambda path: path.name)
def test_an_example_is_what_its_command_prints(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, command, *shown = path.read_text(encoding="utf-8").splitlines()
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")
    done = k3ctl(*command.removeprefix("$ k3ctl ").split())
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    assert until_profiles(shown) == until_profiles(printed)


def until_profiles(lines: list[str]) -> list[str]:
    """The part that does not depend on which profiles there are."""
    return lines[: next(i for i, line in enumerate(lines) if line.startswith("can run here"))]


def test_there_are_repeatable_examples() -> None:
    assert len(REPEATABLE) >= 4
