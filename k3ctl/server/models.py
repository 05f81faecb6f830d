"""Which model a server serves, as ``/v1/models`` lists it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k3ctl.engine.client import Client
from k3ctl.errors import EngineError, UsageError


def listed(client: Client) -> list[Mapping[str, Any]]:
    """The entries of ``/v1/models``.

    Raises:
        EngineError: nothing answers, or no such list.
    """
    answer = client.json("/v1/models", timeout_s=10)
    entries = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(entries, list):
        raise EngineError(f"`{client.url}/v1/models` lists no models", hint="is this a vLLM server?")
    return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def served(client: Client, wanted: str | None = None) -> str:
    """The name to ask for: ``wanted``, when the server has it, else its one model.

    vLLM lists a model once per name and once per adapter. Names of one model share their ``root``; an adapter has a
    ``parent``. So the first name of the only root is the served model; several roots are several models.

    Raises:
        EngineError: nothing answers, or ``wanted`` is not served.
        UsageError: the server offers none or several.
    """
    entries = listed(client)
    names = [str(entry["id"]) for entry in entries]
    if wanted is not None:
        if wanted not in names:
            raise EngineError(
                f"`{client.url}` does not serve `{wanted}`",
                hint=f"it serves: {', '.join(names) or 'nothing'}",
            )
        return wanted
    own = [entry for entry in entries if not entry.get("parent")]
    roots = {str(entry.get("root") or entry["id"]) for entry in own}
    if len(roots) != 1:
        raise UsageError(
            f"`{client.url}` serves {len(roots)} models",
            hint=f"add `--model`, or give the address of one engine: {', '.join(names)}" if names else None,
        )
    return str(own[0]["id"])


def max_model_len(client: Client, model: str) -> int | None:
    """Longest context of ``model`` in tokens; None when the server does not say."""
    for entry in listed(client):
        length = entry.get("max_model_len")
        if entry["id"] == model and isinstance(length, int) and not isinstance(length, bool):
            return length
    return None
