"""Several needles in a haystack: which value was told last, first, or second for a name, among others like it. Pure.

Every document tells several values of every name, so that finding the name is not enough (the idea of multi-round
coreference tests). The places of the wanted sentence go evenly from the beginning to the end.
"""

from __future__ import annotations

import random
from typing import Any

NAMES = ("amber", "birch", "cedar", "dune", "ember", "fjord", "grove", "heron")
TOLD = 3
"""Values told of every name."""
ORDINALS = ("first", "second", "third")
DEFAULT_SENTENCES = 60
_FILLER = (
    "The ferry left {n} minutes late because of the fog.",
    "A survey of {n} gardens found more sparrows than last year.",
    "The {n} houses by the canal were painted in the spring.",
    "Nobody on the committee remembered the minutes of meeting {n}.",
    "Train {n} waits on the middle track until the signal clears.",
    "Page {n} of the catalogue shows a chair of bent ash.",
)


def questions(count: int, seed: int, sentences: int = DEFAULT_SENTENCES) -> list[dict[str, Any]]:
    """``count`` documents of about ``sentences`` sentences, each with a question about one of 24 needles."""
    source = random.Random(seed)
    return [_document(number, count, sentences, source) for number in range(count)]


def _document(number: int, count: int, sentences: int, source: random.Random) -> dict[str, Any]:
    name, ordinal = NAMES[number % len(NAMES)], (number * TOLD // max(1, count)) % TOLD
    codes = source.sample(range(1000, 9999), len(NAMES) * TOLD)
    told = [(who, codes[place * TOLD + time]) for place, who in enumerate(NAMES) for time in range(TOLD)]
    source.shuffle(told)
    text = [
        source.choice(_FILLER).format(n=source.randint(2, 98)) for _ in range(max(0, sentences - len(told)))
    ]
    for place in sorted(source.choices(range(len(text) + 1), k=len(told)), reverse=True):
        who, code = told.pop()
        text.insert(place, f"The code of {who} is {code}.")
    answers = [line.rsplit(" ", 1)[1].rstrip(".") for line in text if f"code of {name} " in line]
    place = next(at for at, line in enumerate(text) if answers[ordinal] in line and "code of" in line)
    question = (
        f"Read this text.\n\n{' '.join(text)}\n\nThe text tells {TOLD} codes of {name}. Which is the "
        f"{ORDINALS[ordinal]} of them, in the order of the text? End with a line `Answer: N`."
    )
    return {
        "id": f"needle-{number}",
        "kind": ORDINALS[ordinal],
        "depth": round(place / max(1, len(text) - 1), 3),
        "question": question,
        "answer": answers[ordinal],
    }
