"""scripts/mutants.py on a toy tree, and that every edit of the real list still applies."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from scripts import mutants

CODE = "def double(x):\n    return 2 * x\n\n\ndef half(x):\n    return x / 2\n"
TEST = "from code_under_test import double\n\n\ndef test_double():\n    assert double(3) == 6\n"
EDIT = "- {{name: {name}, file: code_under_test.py, old: '{old}', new: '{new}', tests: [test_it.py]}}\n"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toy tree; its tests need none of the plugins, which take ten times as long to load as the tests to run."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    root = tmp_path / "tree"
    root.mkdir()
    (root / "code_under_test.py").write_text(CODE)
    (root / "test_it.py").write_text(TEST)
    (root / ".gitignore").write_text("ignored\n")
    (root / "ignored").write_text("")
    subprocess.run(["git", "init", "-q", root], check=True)
    return root


def run(tree: Path, *edits: tuple[str, str, str], options: tuple[str, ...] = ()) -> int:
    path = tree.parent / "list.yaml"
    rows = [EDIT.format(name=name, old=old, new=new) for name, old, new in edits]
    path.write_text("- edits:\n" + "".join("    " + row for row in rows))
    return int(mutants.main(["--list", str(path), "--root", str(tree), *options]))


def test_a_mutant_that_a_test_sees_is_killed_and_the_tree_is_untouched(tree, capsys):
    assert run(tree, ("wrong factor", "2 * x", "3 * x")) == 0
    out = capsys.readouterr().out
    assert "| wrong factor | code_under_test.py | killed | test_it.py::test_double |" in out
    assert "killed 1, SURVIVED 0, UNUSABLE 0" in out
    assert (tree / "code_under_test.py").read_text() == CODE
    assert {p.name for p in tree.iterdir()} == {
        ".git",
        ".gitignore",
        "ignored",
        "code_under_test.py",
        "test_it.py",
    }


def test_one_survivor_among_the_killed_fails_the_run(tree, capsys):
    assert run(tree, ("wrong factor", "2 * x", "3 * x"), ("unseen", "x / 2", "x / 3")) == 1
    assert "killed 1, SURVIVED 1, UNUSABLE 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    "new", ["return 2 * (x", "return 2 * x\n\n\nimport os\nos._exit(7)"], ids=["syntax", "exit"]
)
def test_an_edit_that_stops_the_tests_from_running_counts_as_neither(tree, capsys, new):
    edit = {"name": "broken", "file": "code_under_test.py", "old": "return 2 * x", "new": new}
    path = tree.parent / "list.yaml"
    path.write_text(json.dumps([{"tests": ["test_it.py"], "edits": [edit]}]))
    assert mutants.main(["--list", str(path), "--root", str(tree)]) == 1
    assert "killed 0, SURVIVED 0, UNUSABLE 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "why"), [("4 * x", "found 0 times"), ("return", "found 2 times")], ids=["gone", "ambiguous"]
)
def test_an_edit_that_no_longer_applies_fails_the_run_before_any_test(tree, capsys, old, why):
    assert run(tree, ("stale", old, "else"), options=("--check",)) == 1
    assert why in capsys.readouterr().out


def test_tests_that_fail_without_a_mutant_prove_nothing(tree, capsys):
    (tree / "test_it.py").write_text(TEST.replace("== 6", "== 7"))
    assert run(tree, ("wrong factor", "2 * x", "3 * x")) == 1
    assert "do not pass without any mutant" in capsys.readouterr().out


def test_a_test_that_does_not_exist_is_named(tree, capsys):
    (tree / "test_it.py").unlink()
    assert run(tree, ("wrong factor", "2 * x", "3 * x")) == 1
    assert "no such test: test_it.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "- edits: [{name: a, file: f, old: x, new: x, tests: [t]}]",
        "- edits: [{name: a, file: f, old: x}]",
        "{",
    ],
    ids=["changes nothing", "incomplete", "not a list"],
)
def test_a_list_that_cannot_be_used_is_refused(tmp_path, text, capsys):
    (tmp_path / "list.yaml").write_text(text)
    with pytest.raises(SystemExit) as refused:
        mutants.main(["--list", str(tmp_path / "list.yaml")])
    assert refused.value.code == 2
    assert "list.yaml" in capsys.readouterr().err


def test_every_edit_of_the_list_applies_to_this_tree():
    assert mutants.main(["--check"]) == 0
