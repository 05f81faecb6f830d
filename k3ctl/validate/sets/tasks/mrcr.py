"""Multi-round coreference for the harness: the prompt of a row, and the points of a reply. Runs in the harness.

A row has ``prompt`` (messages as a list, or as JSON text), ``answer``, and ``random_string_to_prepend``.
"""

from __future__ import annotations

import difflib
import json
from typing import Any


def text(doc: dict[str, Any]) -> str:
    """The conversation as one text, who spoke before every turn."""
    messages = doc["prompt"]
    if isinstance(messages, str):
        messages = json.loads(messages)
    turns = [f"{message['role']}: {message['content']}" for message in messages]
    return "\n\n".join(turns)


def points(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Likeness of the reply and the answer, both without the key; 0 for a reply that does not begin with the key."""
    key, reply = str(doc.get("random_string_to_prepend") or ""), results[0].strip()
    if not reply.startswith(key):
        return {"likeness": 0.0}
    answer = str(doc["answer"]).removeprefix(key)
    return {"likeness": difflib.SequenceMatcher(None, reply.removeprefix(key), answer).ratio()}
