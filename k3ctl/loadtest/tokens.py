"""Do client and server count tokens alike? Both count the same texts before the load; the summary compares.

Kimi K3 builds its think markers from special tokens (``<|open|>think<|sep|>``), three ids each. A client whose
tokenizer falls back to a generic class splits them and then counts other lengths than the server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from k3ctl.errors import EngineError
from k3ctl.loadtest.events import Event
from k3ctl.server.client import Client

FILE = "tokenize.json"
MARKERS = ("<|open|>", "<|close|>", "<|sep|>", "<|open|>think<|sep|>", "<|close|>think<|sep|>")
SAMPLE = "The quick brown fox jumps over the lazy dog; 1234567890 times, αβγ, 你好."


def ask_server(client: Client, model: str) -> dict[str, Any]:
    """Token counts of the markers and of a sample by vLLM's ``/tokenize``; empty when the server has no such route."""
    counts: dict[str, int] = {}
    for text in (*MARKERS, SAMPLE):
        try:
            answer = client.json("/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})
            counts[text] = int(answer["count"])
        except (EngineError, KeyError, TypeError, ValueError):
            return {"counts": {}}
    return {"counts": counts}


def mismatch(raw: Path, events: Sequence[Event]) -> str | None:
    """How the client's counts differ from the server's, in one sentence; None when they agree or are not known."""
    path = raw / FILE
    if not path.is_file():
        return None
    server: Mapping[str, int] = json.loads(path.read_text(encoding="utf-8")).get("counts", {})
    for event in events:
        if event["kind"] == "tokenizer" and "counts" in event:
            return _differs(server, event["counts"])
    return None


def _differs(server: Mapping[str, int], client: Mapping[str, int]) -> str | None:
    wrong = [text for text, count in server.items() if client.get(text, count) != count]
    if not wrong:
        return None
    text = wrong[0]
    name = f"`{text}`" if text in MARKERS else "a sample sentence"
    return f"the client's tokenizer makes {client[text]} tokens of {name}, the server's {server[text]}"
