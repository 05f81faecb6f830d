"""The locks name what pyproject.toml asks for, so that an installation resolves nothing."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ASKED = {"cpu": PROJECT["dependencies"], "dev": PROJECT["optional-dependencies"]["dev"]}


def locked(name: str) -> dict[str, str]:
    rows = (ROOT / "requirements" / f"{name}.lock").read_text().splitlines()
    pins = [row.partition("==") for row in rows if "==" in row and not row.startswith("#")]
    return {canonicalize_name(package): version for package, _, version in pins}


@pytest.mark.parametrize("lock", ASKED)
def test_each_requirement_has_a_version_that_satisfies_it(lock: str) -> None:
    pins = locked("cpu") | (locked(lock) if lock != "cpu" else {})
    for text in ASKED[lock]:
        asked = Requirement(text)
        assert asked.specifier.contains(pins.get(canonicalize_name(asked.name), "missing")), text
