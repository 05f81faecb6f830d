"""YAML that anyone may have written is refused in bounded time, with the line."""

from __future__ import annotations

import time

import pytest

from k3ctl import yamls
from k3ctl.errors import UsageError

LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: 1\nb: " + "[" * 100_000, r"f line 2: (nested too deeply|.*nesting depth)"),
        ("- " * 100_000, "f line 1: nested too deeply"),
        ("a: " + "{x: " * 1000 + "}" * 1000, "f line 1: nested too deeply"),
        (LAUGHS, r"f line 2: an alias \(`\*name`\): write it out"),
        ("a: &x [*x]", "f line 1: an alias"),
        ("a: 1\nb: [", r"f line [23]: not valid YAML"),
        ("a: !!python/object/apply:os.system [x]", r"f line 1: not valid YAML \(could not determine a constructor"),
        ("a: \0", "f: not valid YAML"),
    ],
    ids=["lists", "blocks", "mappings", "laughs", "itself", "cut", "object", "nul"],
)  # fmt: skip
def test_hostile_yaml_is_refused_with_its_line(text: str, what: str) -> None:
    started = time.process_time()
    with pytest.raises(UsageError, match=f"^{what}"):
        yamls.load(text, "f")
    assert time.process_time() - started < 2


def test_what_people_write_is_read() -> None:
    assert yamls.load("a: {b: [1, 2, {c: d}]}", "f") == {"a": {"b": [1, 2, {"c": "d"}]}}
    assert yamls.load("", "f") is None
