"""The lines that lead and member exchange: JSON objects with a kind, ``k3``. Others are a shell's greeting."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from k3ctl.errors import EngineError, ExitCode, K3Error, MachineError, UsageError

BEAT_S = 1.0
LEASE_S = 8.0
"""Without a line for this long the other end is gone."""
MAX_LINE = 16 << 20
"""A machine's record with eight GPUs has some 100 kB, the end of a log at most ``LOG_BYTES``."""
LOG_BYTES = 1 << 20
"""How much of a log's end a member sends when its run has failed."""

_ERRORS: Mapping[int, type[K3Error]] = {
    ExitCode.USAGE: UsageError,
    ExitCode.MACHINE: MachineError,
    ExitCode.ENGINE: EngineError,
}


def line(kind: str, **fields: Any) -> bytes:
    """One message as it is written."""
    return json.dumps({"k3": kind, **fields}).encode() + b"\n"


def message(text: bytes) -> dict[str, Any] | None:
    """The message of a line; None for a line that is none."""
    if not text.lstrip().startswith(b"{"):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("k3"), str) else None


def error_data(error: K3Error) -> dict[str, Any]:
    """An error as a field."""
    return {
        "exit_code": int(error.exit_code),
        "message": error.message,
        "hint": error.hint,
        "reasons": list(error.reasons),
    }


def error(data: Any, place: str) -> K3Error:
    """The error of a field, with the node's name before its message."""
    data = data if isinstance(data, Mapping) else {}
    code = data.get("exit_code")
    kind = _ERRORS.get(code, K3Error) if isinstance(code, int) else K3Error
    reasons = data.get("reasons")
    return kind(
        f"{place}: {data.get('message') or 'failed without a message'}",
        hint=str(data["hint"]) if data.get("hint") else None,
        reasons=[str(reason) for reason in reasons] if isinstance(reasons, list) else (),
    )
