"""Write the generated pages of ``docs/reference``: ``python scripts/write_reference.py``.

A test fails when a page differs from what the code says.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from k3ctl.checks import reference as doctor  # noqa: E402
from k3ctl.triage import reference as triage  # noqa: E402
from scripts.reference import commands, plan, validate  # noqa: E402

FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- written by scripts/write_reference.py; do not edit -->\n"
PAGES = {
    "commands.md": commands.page,
    "doctor.md": doctor.page,
    "plan-rules.md": plan.rules_page,
    "profile.schema.json": plan.schema,
    "profiles.md": plan.profiles_page,
    "triage.md": triage.page,
    "validate-checks.md": validate.page,
}


def text(name: str) -> str:
    """A page as it should be."""
    return (NOTE if name.endswith(".md") else "") + PAGES[name]()


def main() -> None:
    """Write all pages."""
    for name in PAGES:
        (FOLDER / name).write_text(text(name), encoding="utf-8")


if __name__ == "__main__":
    main()
