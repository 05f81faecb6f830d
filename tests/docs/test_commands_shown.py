"""Every command that a page, a help text or a message shows is one that the program takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.reference.commands import examples, tree

from . import shown
from .pages import PAGES, ROOT, name, split

MODULES = sorted((ROOT / "k3ctl").rglob("*.py"))
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_commands_in_code_blocks_parse(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [wrong for line in shown.blocks(text) if (wrong := shown.strictly(line))] == []


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_commands_in_sentences_exist_with_their_options(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = [line for line in shown.inline(text) if "[OPTIONS]" not in line]
    assert [wrong for line in found if (wrong := shown.loosely(line))] == []


@pytest.mark.parametrize("command", [name for name, _ in tree()])
def test_the_examples_of_a_help_text_parse(command: str) -> None:
    lines = examples(shown.leaves()[command].epilog or "")
    assert lines, f"`{command} --help` has no example"
    assert [wrong for line in lines if (wrong := shown.strictly(line))] == []


def test_commands_in_messages_exist_with_their_options() -> None:
    found = {(name(path), line) for path in MODULES for line in shown.messages(path)}
    assert len(found) > 50
    assert [f"{where}: {wrong}" for where, line in sorted(found) if (wrong := shown.loosely(line))] == []


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_make_targets_and_scripts_exist(path: Path) -> None:
    prose, code = split(path.read_text(encoding="utf-8"))
    commands = [*code, *re.findall(r"`([^`]+)`", "\n".join(prose))]
    asked = {target for line in commands for target in re.findall(r"^\s*(?:\$ )?make ([a-z][a-z-]*)", line)}
    assert asked <= TARGETS
    files = {
        file for line in commands for file in re.findall(r"\bpython3? ((?:scripts|tests)/\S+\.py)", line)
    }
    assert [file for file in files if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize(
    "line",
    [
        "k3ctl no-such-command",
        "k3ctl serve --no-such-option",
        "k3ctl serve --profile gb300-tp61",
        "k3ctl serve -p cpu-tiny --set max_num_sqs=4",
        "k3ctl plan gb300-tp61",
        "k3ctl plan --hardware",
        "k3ctl bench smok",
        "k3ctl doctor --explain no.such-rule",
        "k3ctl profiles nothing",
        "k3ctl verify --rows many",
    ],
)
def test_a_wrong_line_in_a_block_is_seen(line: str) -> None:
    assert shown.strictly(line)
    assert list(shown.blocks(f"```\n$ {line} | tee x\n```")) == [f"{line} | tee x"]


@pytest.mark.parametrize("line", ["k3ctl profile", "k3ctl plan --runn", "k3ctl bundle shw"])
def test_a_wrong_line_in_a_sentence_is_seen(line: str) -> None:
    assert shown.loosely(line)
    assert list(shown.inline(f"See `{line}`.")) == [line]


def test_a_line_with_something_left_out_is_held_to_what_is_there() -> None:
    assert shown.strictly("k3ctl serve … --detach  # it is a profile that is left out") is None
    assert shown.strictly("k3ctl serve … --no-such-option")


def test_what_follows_a_pipe_a_comment_or_an_assignment_is_no_argument() -> None:
    line = "K3CTL_SET='a=b' k3ctl doctor --json > x.json   # keep it"
    assert shown.words(line) == ["k3ctl", "doctor", "--json"]
    assert shown.strictly(line) is None
