"""Generated pages are what the code says; pages by hand name what the code has, and nothing else."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest

from k3ctl import signals
from k3ctl.errors import ExitCode
from k3ctl.telemetry import exposition
from k3ctl.verdict import judge

from .pages import ROOT


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_reference", ROOT / "scripts" / "write_reference.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = _loaded()
REFERENCE = ROOT / "docs" / "reference"
SOURCES = [
    path
    for folder in ("k3ctl", "runtime")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not path.name.startswith("test_")
]


@pytest.mark.parametrize("name", GENERATOR.PAGES)
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    assert (REFERENCE / name).read_text(encoding="utf-8") == GENERATOR.text(name), (
        "stale: run `python scripts/write_reference.py`"
    )


def test_the_commands_page_has_every_exit_code() -> None:
    assert set(GENERATOR.commands.exit_codes()) == {int(code) for code in ExitCode}


def test_every_variable_that_the_code_reads_is_explained_and_no_other() -> None:
    read = {
        name
        for path in SOURCES
        for name in re.findall(r"\"((?:K3CTL|K3)_[A-Z_]*[A-Z])\"", path.read_text(encoding="utf-8"))
    } - NOT_VARIABLES
    assert explained("environment.md", r"(?:K3CTL|K3)_[A-Z_]+") == read


NOT_VARIABLES = {"K3_LATENT", "K3_KDA"}
"""Names of attention backends."""


def test_every_series_that_k3ctl_reads_is_explained_and_no_other() -> None:
    series = {
        value
        for name, value in vars(signals).items()
        if name.isupper() and isinstance(value, str) and name != "PREFIX"
    }
    assert explained("metrics.md", r"(?:vllm:|k3_|process_)[a-z0-9_]+") == series


def test_every_series_of_the_exported_page_is_explained_and_no_other() -> None:
    assert explained("metrics.md", r"k3ctl_[a-z_]+") == set(exposition.SERIES)


def test_every_reason_for_the_standard_path_has_a_remedy_in_the_how_to() -> None:
    assert explained("../how-to/prove-the-fast-path.md", "[a-z-]+") == set(judge.REMEDIES)


def explained(page: str, pattern: str) -> set[str]:
    """The names that begin a row of a page's tables."""
    rows = (REFERENCE / page).read_text(encoding="utf-8").splitlines()
    return {name for row in rows for name in re.findall(rf"^\| `({pattern})` \|", row)}
