"""The ten prompts of the canary. Each has one short answer that a model of K3's size does not miss at temperature 0."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    """``answer``: a regular expression that a right answer contains; ``told`` says it in words."""

    id: str
    text: str
    answer: str
    told: str


PROMPTS: tuple[Prompt, ...] = (
    Prompt("sum", "What is 4817 + 2936? Answer with the number only.", r"7[,.]?753\b", "7753"),
    Prompt("product", "What is 17 times 23? Answer with the number only.", r"\b391\b", "391"),
    Prompt("capital", "What is the capital of Australia? Answer with one word.", r"(?i)canberra", "Canberra"),
    Prompt("reverse", "Write the word 'stream' backwards, and nothing else.", r"(?i)maerts", "maerts"),
    Prompt(
        "count",
        "Count from 1 to 12, separated by single spaces, and nothing else.",
        r"1\s+2\s+3\s+4\s+5\s+6\s+7\s+8\s+9\s+10\s+11\s+12",
        "1 2 3 … 12",
    ),
    Prompt(
        "copy",
        "Repeat this exactly: violet-otter-58-kelvin-harbor-203",
        r"violet-otter-58-kelvin-harbor-203",
        "violet-otter-58-kelvin-harbor-203",
    ),
    Prompt("translate", "Translate into French, one word only: cheese", r"(?i)fromage", "fromage"),
    Prompt(
        "sort",
        "Sort these words alphabetically, separated by commas only: pear, apple, fig, lemon",
        r"(?i)apple\s*,\s*fig\s*,\s*lemon\s*,\s*pear",
        "apple, fig, lemon, pear",
    ),
    Prompt(
        "python",
        "What does this Python expression evaluate to? sum(range(5)) Answer with the number only.",
        r"\b10\b",
        "10",
    ),
    Prompt(
        "needle",
        "A list of rooms and keys: room 11 brass, room 12 steel, room 13 copper, room 14 nickel, room 15 zinc, "
        "room 16 tin, room 17 silver. Which key opens room 14? Answer with one word.",
        r"(?i)nickel",
        "nickel",
    ),
)
