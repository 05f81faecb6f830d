"""Which figures of a row its own guards disbelieve. Pure; for a table without room for every finding.

A waiver lets a row count as valid, it makes no figure true. So what a guard refused before its waiver is refused here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from k3ctl.loadtest.guards import CAUTION, INVALID

TTFT, ITL, OUTPUT, STEPS = "ttft_ms", "itl_ms", "output_tok_s", "steps"
TIMED = frozenset({TTFT, ITL, OUTPUT})

REFUSES: Mapping[str, frozenset[str]] = {
    "bursts": frozenset({ITL}),
    "little": frozenset({OUTPUT}),
    "restart": TIMED | {STEPS},
    "clock": TIMED | {STEPS},
    "partial": TIMED | {STEPS},
}
"""What a guard's refusal reaches; any other guard refuses everything that was timed."""
ALREADY_AT_CAUTION = frozenset({"bursts", "synthetic"})
"""Guards whose caution says that a figure is not the real one."""
ABOUT_THE_CLIENT = frozenset({"bursts", "little"})
"""The client counted or read wrongly; the server's own counters stand."""
SERVERS_OWN: Mapping[str, str] = {ITL: "tpot_ms", OUTPUT: "output_tok_s"}


def refusing(row: Mapping[str, Any], figure: str) -> tuple[str, ...]:
    """Guards that disbelieve ``figure`` of a summary's row, in the order of their findings."""
    named = [finding["guard"] for finding in row["findings"] if _refuses(finding, figure)]
    return tuple(dict.fromkeys(named))


def shown(row: Mapping[str, Any], figure: str, value: float | None, digits: int = 1) -> str:
    """``value`` where every guard believes it; else the server's own, or a dash with the guards' names."""
    guards = refusing(row, figure)
    if not guards:
        return _number(value, digits) or "–"
    if set(guards) <= ABOUT_THE_CLIENT:
        server = _number((row.get("server") or {}).get(SERVERS_OWN.get(figure, "")), digits)
        if server:
            return f"{server} (server's)"
    return f"– ({', '.join(guards)})"


def _refuses(finding: Mapping[str, Any], figure: str) -> bool:
    level = finding.get("raised") or finding["level"]
    refused = level == INVALID or (level == CAUTION and finding["guard"] in ALREADY_AT_CAUTION)
    return refused and figure in REFUSES.get(finding["guard"], TIMED)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None or not math.isfinite(value) or value < 0 else f"{value:.{digits}f}"
