"""A benchmark's event stream, folded into the rows of its table.

Kinds are those of the load generator's bridge: ``run_start``, ``bench_start``, ``tick``, ``request``,
``bench_compile``, ``bench_done``, ``run_end``, ``fatal``, ``seam_missing``; others are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from k3ctl.telemetry.events import BenchReported


@dataclass(frozen=True)
class BenchRow:
    """One concurrency step. ``phase``: pending, warmup, active, cooldown, compiling, done.

    ``remaining`` is the share of the step that is left; ``itl_ms`` is what others call TPOT. ``reference`` is
    the published output tok/s of the same conditions as ``(low, high)``, when the run names one.
    """

    strategy: str
    phase: str = "pending"
    remaining: float | None = None
    completed: int = 0
    errored: int = 0
    in_flight: int = 0
    output_tok_s: float | None = None
    ttft_ms: float | None = None
    itl_ms: float | None = None
    request_latency_s: float | None = None
    reference: tuple[float, float] | None = None
    reference_label: str = ""

    @property
    def done(self) -> bool:
        """The step has its final figures."""
        return self.phase == "done"


@dataclass(frozen=True)
class BenchState:
    """A run so far. ``state``: running, done, failed; ``expected`` is how many rows the run announced."""

    source: str
    started_at: float
    updated_at: float
    state: str = "running"
    expected: int = 0
    rows: tuple[BenchRow, ...] = ()
    note: str = ""


def advance(state: BenchState | None, event: BenchReported) -> BenchState:
    """The state after one more line of the stream."""
    data = event.data
    kind = data.get("kind")
    if state is None or kind == "run_start":
        strategies = data.get("strategies")
        expected = len(strategies) if isinstance(strategies, list) else 0
        state = BenchState(event.source, event.t, event.t, expected=expected)
    state = replace(state, updated_at=event.t)
    match kind:
        case "bench_start":
            return replace(state, rows=(*state.rows, _started(data)))
        case "tick":
            return _last(state, **_tick(data))
        case "bench_compile":
            return _last(state, phase="compiling", remaining=0.0)
        case "bench_done":
            return _last(state, **_done(data))
        case "run_end":
            return replace(state, state="done" if state.state == "running" else state.state)
        case "fatal":
            return replace(state, state="failed", note=str(data.get("error", "failed")))
        case "seam_missing":
            return replace(state, note=f"no live figures, final results only: {data.get('reason', '')}")
    return state


def _started(data: Mapping[str, Any]) -> BenchRow:
    row = BenchRow(str(data.get("strategy", "?")))
    reference = data.get("reference")
    if not isinstance(reference, Mapping):
        return row
    values = reference.get("output_tok_s")
    low_high = [float(v) for v in values if isinstance(v, int | float)] if isinstance(values, list) else []
    if not low_high:
        return row
    return replace(
        row, reference=(min(low_high), max(low_high)), reference_label=str(reference.get("label", ""))
    )


def _tick(data: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        "otps": "output_tok_s",
        "ttft_ms": "ttft_ms",
        "itl_ms": "itl_ms",
        "lat_s": "request_latency_s",
        "remaining": "remaining",
    }
    changes: dict[str, Any] = {ours: _float(data.get(theirs)) for theirs, ours in names.items()}
    counts = {"ok": "completed", "err": "errored", "processing": "in_flight"}
    changes |= {ours: int(_float(data.get(theirs)) or 0) for theirs, ours in counts.items()}
    return changes | {"phase": str(data.get("phase", "active"))}


def _done(data: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {"phase": "done", "remaining": 0.0, "in_flight": 0}
    if (rate := _float(data.get("otps"))) is not None:
        changes["output_tok_s"] = rate
    totals = data.get("totals")
    if isinstance(totals, Mapping):
        changes["completed"] = int(_float(totals.get("successful")) or 0)
        changes["errored"] = int(_float(totals.get("errored")) or 0)
    return changes


def _last(state: BenchState, **changes: Any) -> BenchState:
    """The state with its last row changed; a stream joined in the middle gets a row without a name."""
    rows = state.rows or (BenchRow("?"),)
    return replace(state, rows=(*rows[:-1], replace(rows[-1], **changes)))


def _float(value: Any) -> float | None:
    """A finite number; None for anything else that a damaged event may hold."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e300:
        return None
    return float(value)
