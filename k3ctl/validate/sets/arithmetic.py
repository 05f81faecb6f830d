"""Whole-number arithmetic: sums, differences, products, remainders, and short expressions with brackets. Pure."""

from __future__ import annotations

import random
from typing import Any

_KINDS = ("sum", "difference", "product", "remainder", "brackets")


def questions(count: int, seed: int) -> list[dict[str, Any]]:
    """``count`` questions, all kinds in turn; the same for the same seed; a longer set begins with a shorter one."""
    source = random.Random(seed)
    return [_question(_KINDS[number % len(_KINDS)], source) for number in range(count)]


def _question(kind: str, source: random.Random) -> dict[str, Any]:
    a, b, c = source.randint(120, 9_900), source.randint(120, 9_900), source.randint(3, 29)
    text, value = {
        "sum": (f"{a} + {b}", a + b),
        "difference": (f"{max(a, b)} - {min(a, b)}", abs(a - b)),
        "product": (f"{a % 100 + 11} * {c}", (a % 100 + 11) * c),
        "remainder": (f"the remainder of {a} divided by {c}", a % c),
        "brackets": (f"({a} + {b}) * {c}", (a + b) * c),
    }[kind]
    question = f"Compute {text}. End with a line `Answer: N`, where N is the result as a whole number without commas."
    return {"id": f"{kind}-{a}-{b}-{c}", "kind": kind, "question": question, "answer": str(value)}
