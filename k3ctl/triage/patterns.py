"""Regular expressions that cannot take long: every repetition is bounded, and a literal stands in front of each.

A rule is written with ``.*?`` and ``+`` as people read them; ``compiled`` bounds them, so that the work per line does
not grow faster than the line. ``literals`` finds the texts of which one must stand in a line before a pattern can
match: a substring search costs a hundredth of a regular expression.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

GAP = 400
"""The longest stretch that ``*`` and ``+`` may cover."""

_TOKENS = re.compile(r"(?P<keep>\\.|\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<open>(?<=[^(|])[*+])(?P<lazy>\??)")


def bounded(pattern: str) -> str:
    """``pattern`` with ``*`` and ``+`` replaced by repetitions of at most ``GAP``."""

    def limit(found: re.Match[str]) -> str:
        if found["keep"]:
            return found["keep"]
        return f"{{{0 if found['open'] == '*' else 1},{GAP}}}{found['lazy']}"

    return _TOKENS.sub(limit, pattern)


def compiled(pattern: str) -> re.Pattern[str]:
    """The bounded pattern, ready to search."""
    return re.compile(bounded(pattern))


def literals(pattern: str) -> frozenset[str]:
    """Texts of which at least one stands in everything that matches; empty when there is no such set."""
    return _of(_parser.parse(pattern))


def _of(tree: Iterable[tuple[Any, Any]]) -> frozenset[str]:
    found: list[frozenset[str]] = []
    run = ""
    for op, argument in tree:
        if op is sre.LITERAL:
            run += chr(argument)
            continue
        found.append(frozenset({run} - {""}))
        run = ""
        if op is sre.SUBPATTERN:
            found.append(_of(argument[3]))
        elif op is sre.BRANCH:
            branches = [_of(branch) for branch in argument[1]]
            found.append(frozenset().union(*branches) if all(branches) else frozenset())
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT) and argument[0] > 0:
            found.append(_of(argument[2]))
    found.append(frozenset({run} - {""}))
    return max(found, key=_worth)


def _worth(texts: frozenset[str]) -> int:
    """A set is as good as its shortest text."""
    return min((len(text) for text in texts), default=0)


def cover(texts: Iterable[str], length: int = 4) -> dict[str, list[str]]:
    """Few short pieces, each with the texts that hold it: a line without any piece holds none of the texts."""
    open_texts = set(texts)
    groups: dict[str, list[str]] = {}
    while open_texts:
        pieces = Counter(piece for text in open_texts for piece in _pieces(text, length))
        best = max(pieces, key=lambda piece: (pieces[piece], piece))
        groups[best] = sorted(text for text in open_texts if best in text)
        open_texts -= set(groups[best])
    return groups


def _pieces(text: str, length: int) -> set[str]:
    return {text[at : at + length] for at in range(max(1, len(text) - length + 1))}


def degree(pattern: str) -> int:
    """How the work of searching ``pattern`` in a line of n characters can grow: n to this power, at the worst.

    Counted from the pattern, not measured: one for the places where a search can begin (none when it is anchored), one
    for each repetition without a bound that a match can go through.
    """
    tree = list(_parser.parse(pattern))
    anchored = (
        bool(tree) and tree[0][0] is sre.AT and tree[0][1] in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING)
    )
    return (0 if anchored else 1) + _unbounded(tree)


def _unbounded(tree: Iterable[tuple[Any, Any]]) -> int:
    total = 0
    for op, argument in tree:
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            total += (argument[1] == sre.MAXREPEAT) + _unbounded(argument[2])
        elif op is sre.SUBPATTERN:
            total += _unbounded(argument[3])
        elif op is sre.BRANCH:
            total += max((_unbounded(branch) for branch in argument[1]), default=0)
        elif op in (sre.ASSERT, sre.ASSERT_NOT):
            total += _unbounded(argument[1])
    return total
