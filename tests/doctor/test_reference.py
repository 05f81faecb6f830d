"""The reference page is written from the rules, and the examples still look like what the code prints."""

from __future__ import annotations

from pathlib import Path

from k3ctl.checks import RULES, reference
from k3ctl.checks.finding import Area

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "doctor.md"


def test_the_reference_page_is_what_the_code_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference.page(), (
        "stale: python -m k3ctl.checks.reference > docs/reference/doctor.md"
    )


def test_every_rule_is_on_the_page() -> None:
    assert set(Area) == set(reference.AREAS)
    text = PAGE.read_text(encoding="utf-8")
    assert [id_ for id_ in RULES if f"| `{id_}` |" not in text] == []
