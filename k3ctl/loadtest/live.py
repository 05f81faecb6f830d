"""The state of a running benchmark, folded from client events and server samples; pure, no clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from k3ctl.loadtest.scrape import Sample
from k3ctl.loadtest.window import server_window

STARTING = "client starts"


@dataclass(frozen=True)
class LiveState:
    """What one line (or one screen) shows. Rates in tok/s, latencies in ms, shares in 0..1."""

    steps: int
    duration_s: float | None
    step: int = 0
    concurrency: int | None = None
    phase: str = STARTING
    remaining: float | None = None
    ok: int = 0
    errors: int = 0
    processing: int = 0
    output_tok_s: float | None = None
    ttft_ms: float | None = None
    itl_ms: float | None = None
    server_tok_s: float | None = None
    acceptance_length: float | None = None
    specialized_share: float | None = None
    last_error: str | None = None
    seam: bool = True
    sessions: int | None = None

    def eta_s(self) -> float | None:
        """Seconds until the last step's time limit; None without a time limit, or before the start."""
        if self.duration_s is None or self.remaining is None:
            return None
        return max(0.0, self.duration_s * (self.remaining + self.steps - self.step))

    def line(self) -> str:
        """One line for a log or a terminal without a screen."""
        if self.concurrency is None:
            return self.phase if self.seam else f"{self.phase} (no live data from this GuideLLM version)"
        eta = self.eta_s()
        parts = [
            f"step {self.step}/{self.steps} c={self.concurrency} {self.phase}",
            None if eta is None else f"ETA {eta:.0f} s",
            f"ok {self.ok} err {self.errors}",
            _figure("out", self.output_tok_s, "tok/s", 1),
            _figure("server", self.server_tok_s, "tok/s", 1),
            _figure("TTFT", self.ttft_ms, "ms", 1),
            _figure("ITL", self.itl_ms, "ms", 2),
            _figure("AL", self.acceptance_length, "", 2),
            None if self.specialized_share is None else f"specialized {self.specialized_share:.0%}",
        ]
        return " · ".join(part for part in parts if part)


def on_event(state: LiveState, event: Mapping[str, Any]) -> LiveState:
    """Fold one client event."""
    kind = event["kind"]
    if kind == "bench_start":
        detail = event.get("detail") or {}
        return replace(
            state,
            step=state.step + 1,
            concurrency=int(detail.get("streams") or state.sessions or 1),
            phase="pending",
            remaining=1.0,
            ok=0,
            errors=0,
            output_tok_s=None,
            ttft_ms=None,
            itl_ms=None,
        )
    if kind == "tick":
        return replace(
            state,
            phase=str(event.get("phase") or state.phase),
            remaining=event.get("remaining"),
            ok=int(event.get("ok") or 0),
            errors=int(event.get("err") or 0),
            processing=int(event.get("processing") or 0),
            output_tok_s=event.get("otps"),
            ttft_ms=event.get("ttft_ms"),
            itl_ms=event.get("itl_ms"),
        )
    if kind == "request" and event.get("status") == "errored":
        return replace(state, last_error=str(event.get("error") or "unknown error"))
    if kind == "client_start":
        return replace(state, sessions=event.get("sessions"))
    if kind == "seam_missing":
        return replace(state, seam=False)
    if kind in ("bench_compile", "bench_done", "run_end"):
        return replace(
            state, phase={"bench_compile": "compile", "bench_done": "done", "run_end": "finished"}[kind]
        )
    return state


def on_samples(state: LiveState, before: Sample, after: Sample) -> LiveState:
    """Fold the server's counters between two samples."""
    window = server_window([before, after], None, None)
    if window is None:
        return state
    return replace(
        state,
        server_tok_s=window.output_tok_s,
        acceptance_length=window.acceptance_length or state.acceptance_length,
        specialized_share=window.path.share
        if window.path and window.path.share is not None
        else state.specialized_share,
    )


def _figure(name: str, value: float | None, unit: str, digits: int) -> str | None:
    return None if value is None else f"{name} {value:.{digits}f} {unit}".rstrip()
