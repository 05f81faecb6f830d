"""The map of the code names every room, its paths exist, and the contracts leave no room out."""

from __future__ import annotations

import re
import tomllib

import pytest

from .pages import ROOT, split

MAP = re.findall(r"`([^`]+)`", "\n".join(split((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))[0]))
"""What stands in backticks in the sentences and tables of the map."""
CONTRACTS = {
    contract["name"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]["contracts"]
}
TALKS_TO_PEOPLE = {"cli", "commands", "tui", "output"}
"""The rooms of k3ctl that may know a terminal toolkit."""


def rooms(package: str) -> set[str]:
    folder = ROOT / package
    found = {path.parent.name for path in folder.glob("*/__init__.py")}
    return found | {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}


@pytest.mark.parametrize("package", ["k3ctl", "runtime"])
def test_the_map_names_every_room(package: str) -> None:
    words = set(re.findall(r"[a-z0-9_]+", " ".join(MAP)))
    assert sorted(rooms(package) - words) == []


def test_every_path_of_the_map_exists() -> None:
    paths = [path for text in MAP for path in re.findall(r"^(?:k3ctl|runtime|tests)/[\w/]+(?:\.py)?", text)]
    assert len(paths) > 10
    assert [path for path in paths if not _exists(path)] == []


def _exists(path: str) -> bool:
    return (ROOT / path).exists() or (ROOT / f"{path}.py").exists()


def test_only_rooms_that_talk_to_people_may_know_a_toolkit() -> None:
    named = CONTRACTS["core modules never import the CLI toolkits"]["source_modules"]
    assert {module.removeprefix("k3ctl.") for module in named} == rooms("k3ctl") - TALKS_TO_PEOPLE


def test_layers_are_complete() -> None:
    layered = [contract for contract in CONTRACTS.values() if contract["type"] == "layers"]
    assert {container for contract in layered for container in contract["containers"]} == {"k3ctl", "runtime"}
    assert all(contract["exhaustive"] for contract in layered)
