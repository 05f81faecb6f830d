"""Every row of docs/reference/security.md that code can show is true of the code."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
from pathlib import Path

import pytest

from k3ctl import redact
from k3ctl.engine.node import Node

from .pages import ROOT

PAGE = (ROOT / "docs" / "reference" / "security.md").read_text(encoding="utf-8")
UNITS = {"": 1, "s": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def rows(heading: str) -> list[list[str]]:
    """Cells of the table under a heading, without its head."""
    part = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@pytest.mark.parametrize("row", rows("What is bounded"), ids=lambda row: row[2].strip("`"))
def test_a_limit_is_what_the_constant_says(row: list[str]) -> None:
    module, _, name = row[2].strip("`").rpartition(".")
    number, _, unit = row[1].partition(" ")
    assert getattr(importlib.import_module(module), name) == int(number) * UNITS[unit]


@pytest.mark.parametrize("row", rows("What is redacted"), ids=lambda row: row[0])
def test_an_example_of_a_secret_does_not_survive(row: list[str]) -> None:
    secret = "Pl4ntedSecretValue0123456789abcd"
    line = row[1].strip("`").replace("PLANTED", secret)
    hide = redact.redactor({"MY_API_KEY": secret} if row[0].startswith("values") else {})
    assert secret in line
    shown = [hide.log(line)[0]] if row[0].startswith("prompts") else [hide.shown(line), hide.log(line)[0]]
    shown += (
        [] if row[0].startswith("prompts") else [hide.json(line)[0], json.dumps(hide.value({"x": [line]}))]
    )
    assert not [text for text in shown if secret in text]


def listeners() -> set[str]:
    """Modules of k3ctl and runtime that make something listen."""
    found = set()
    for path in [*(ROOT / "k3ctl").rglob("*.py"), *(ROOT / "runtime").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if (
                name in ("listen", "create_server", "start_server", "start_unix_server")
                or "HTTPServer" in name
            ):
                found.add(path.relative_to(ROOT).as_posix())
    return found


def test_k3ctl_listens_only_where_the_page_says() -> None:
    # `about` holds two ports for the moment in which the hosts look whether they reach one another
    assert listeners() == {"k3ctl/engine/peers.py", "k3ctl/rack/about.py"}
    doors = {row[0]: row for row in rows("Who can reach what")}
    assert "master port + 100" in doors["the nodes' channel"][1]
    assert Node(0, "192.0.2.1", 29500).heartbeat_port == 29600


def test_vllm_asks_for_the_key_on_the_paths_that_the_page_names() -> None:
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("vLLM is not installed")
    source = Path(spec.submodule_search_locations[0], "entrypoints", "serve", "middleware", "authenticate.py")
    found = re.search(r"GUARDED_PREFIX = (\(.*?\))", source.read_text(), re.S)
    assert found
    named = re.findall(r"`(/\w+)`", rows("Who can reach what")[0][0])
    assert tuple(named) == ast.literal_eval(found[1])
