"""From evidence to a verdict. Pure functions; the rules are listed in ``docs/reference/verify.md``.

*proved*: in every drive, counters that may be believed say that its decode steps took the specialized path.
*consistent*: nothing contradicts it, but something that a proof needs could not be checked.
*not engaged*: in some drive the decode steps took the standard path, and why.
*unknown*: the evidence does not allow a statement; the reason says what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from k3ctl.server.witness import (
    SPECIALIZED,
    STANDARD,
    STOCK_SLOTS,
    Counts,
    StepCount,
    WorkerPage,
    own_slots,
)
from k3ctl.verdict.evidence import DriveEvidence, Phase, doubts, flaw, foreign

PROVED_SHARE = 0.95
"""Share of a drive's decode steps that must be specialized."""
STEP_TIME_TOLERANCE = 0.25
"""How far a measured batch-1 step may lie above the published one and still agree with it."""
MIN_TIMED_TOKENS = 16
"""Below this the prompt's time hides that of a step."""


class Grade(StrEnum):
    """Strength of the answer."""

    PROVED = "proved"
    CONSISTENT = "consistent"
    NOT_ENGAGED = "not engaged"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Drive:
    """One phase, counted.

    steps: of the lowest rank (of every engine); decodes: steps that count for the path, which leaves out those that
    had to take our own prompts along; specialized: those of them on the specialized path.
    """

    rows: int
    tokens: int
    steps: Counts
    decodes: float
    specialized: float
    step_ms: float | None

    @property
    def share(self) -> float | None:
        """Share of the decode steps that were specialized; None without such steps."""
        return self.specialized / self.decodes if self.decodes else None

    @property
    def told(self) -> str:
        """One phrase for people."""
        return f"{self.specialized:.0f} of {self.decodes:.0f} decode steps at batch {self.rows}"


@dataclass(frozen=True)
class Verdict:
    """The answer, what it rests on, and what to change. ``share``: of the worst drive."""

    grade: Grade
    statement: str
    share: float | None = None
    reason: str = ""
    remedy: str = ""
    drives: Sequence[Drive] = ()
    notes: Sequence[str] = ()


REMEDIES: Mapping[str, str] = {
    "backend-off": 'start with `--additional-config \'{"decode_backend":"latency_specialized"}\'` '
    "(in a profile: `decode.backend: latency_specialized`)",
    "refused": "change what the witness lists as refused; `k3ctl plan` names the nearest accepted configuration",
    "prefill-in-batch": "prefills share steps with decodes: lower `max_num_batched_tokens`, or separate prefill and "
    "decode servers",
    "query-length-not-uniform": "requests verify different numbers of drafts: keep requests away from max_model_len, "
    "do not vary the number of drafts",
    "query-length-not-planned": "steps carry another number of drafts than num_speculative_tokens",
    "rows-over-limit": "more than 64 token rows a step: concurrency × (1 + num_speculative_tokens) must stay at or "
    "below 64",
    "slots-stock": "the executor runs stock kernels in every slot: choose some of its own",
    "graph-not-specialized": "the captured graphs hold standard kernels: check cudagraph capture sizes and "
    "`decode_backend` at start",
}


def judge(evidence: DriveEvidence) -> Verdict:
    """The verdict on a server: every drive is graded by itself, and the worst of them is the answer."""
    drives = tuple(_drive(phase) for phase in evidence.phases)
    if not evidence.phases:
        return Verdict(Grade.UNKNOWN, "the server was not driven", remedy="run verify again")
    if not any(phase.before or phase.after for phase in evidence.phases):
        return _without_counters(evidence, drives)
    if (found := flaw(evidence)) is not None:
        return Verdict(Grade.UNKNOWN, found.text, remedy=found.remedy, drives=drives)
    silent = next((drive for drive in drives if not drive.decodes), None)
    if silent is not None:
        return Verdict(
            Grade.UNKNOWN,
            f"no pure decode step at batch {silent.rows}: every step carried a prompt",
            remedy="drive longer: raise `--tokens`",
            drives=drives,
        )
    notes = tuple(doubts(evidence))
    worst = min(drives, key=lambda drive: drive.share or 0.0)
    if (worst.share or 0.0) < PROVED_SHARE:
        return _not_engaged(worst, drives, evidence.phases[0].after, notes)
    return Verdict(
        Grade.CONSISTENT if notes else Grade.PROVED, _engaged(drives), worst.share, drives=drives, notes=notes
    )


def _drive(phase: Phase) -> Drive:
    """Grade one drive's steps.

    Decodes that share a step with a prompt are standard by design. Each of our requests has one such step at most, for
    its prompt; what is more than that counts.
    """
    counts = phase.steps()
    mixed = _steps(counts, STANDARD, "mixed")
    standard = _steps(counts, STANDARD, "decode") + max(0.0, mixed - phase.rows)
    stock = sum(count.steps for key, count in counts.items() if key.slots in STOCK_SLOTS)
    specialized = _steps(counts, SPECIALIZED, "decode") - stock
    decodes = specialized + stock + standard
    step_ms = 1000 * phase.seconds / decodes if decodes and phase.rows == 1 else None
    return Drive(phase.rows, phase.generated, counts, decodes, specialized, step_ms)


def _steps(counts: Counts, path: str, kind: str) -> float:
    return sum(count.steps for key, count in counts.items() if (key.path, key.kind) == (path, kind))


def _not_engaged(
    worst: Drive, drives: Sequence[Drive], pages: Sequence[WorkerPage], notes: tuple[str, ...]
) -> Verdict:
    reason = _reason(worst)
    refused = dict.fromkeys(text for page in pages for text in page.refused)
    return Verdict(
        Grade.NOT_ENGAGED,
        f"{worst.decodes - worst.specialized:.0f} of {worst.decodes:.0f} decode steps at batch {worst.rows} took the "
        "standard path",
        worst.share,
        reason,
        _remedy(reason, pages),
        drives,
        notes + tuple(f"refused at start: {text}" for text in refused),
    )


def _reason(drive: Drive) -> str:
    """Why most standard decode steps of a drive were standard; why mixed ones were, where there are no others."""
    for kind in ("decode", "mixed"):
        reasons: dict[str, StepCount] = {}
        for key, count in drive.steps.items():
            if (key.path, key.kind) == (STANDARD, kind):
                reasons[key.reason] = reasons.get(key.reason, StepCount()) + count
        if reasons:
            return max(sorted(reasons), key=lambda reason: reasons[reason].steps)
    return "slots-stock"


def _remedy(reason: str, pages: Sequence[WorkerPage]) -> str:
    """Never the advice to ask for what this deployment cannot have."""
    unavailable = tuple(dict.fromkeys(text for page in pages for text in page.unavailable))
    if reason == "backend-off" and unavailable:
        return f"none on this deployment: {'; '.join(unavailable)}"
    return REMEDIES.get(reason, "")


def _engaged(drives: Sequence[Drive]) -> str:
    steps = "; ".join(drive.told for drive in drives)
    slots = sorted({slots for drive in drives for slots in own_slots(drive.steps)})
    return f"{steps} took the specialized path" + (f" (own kernels: {' / '.join(slots)})" if slots else "")


def _without_counters(evidence: DriveEvidence, drives: Sequence[Drive]) -> Verdict:
    """At best *consistent*: asked for, alone, and about as fast at batch 1 as published for the same deployment."""
    missing = "the server exports no witness counters"
    if evidence.requested is False:
        return Verdict(
            Grade.NOT_ENGAGED,
            "the launch did not ask for the specialized path",
            reason="backend-off",
            remedy=REMEDIES["backend-off"],
            drives=drives,
        )
    remedy = "start the server with `k3ctl serve`, or with the runtime's plugins in VLLM_PLUGINS"
    step_ms, published_ms = _token_ms(evidence), evidence.anchor_step_ms
    if not evidence.requested or published_ms is None or step_ms is None:
        return Verdict(Grade.UNKNOWN, missing, remedy=remedy, drives=drives)
    text = f"{missing}; {step_ms:.2f} ms a token at batch 1, published {published_ms:.2f} ms"
    if step_ms <= published_ms * (1 + STEP_TIME_TOLERANCE):
        return Verdict(Grade.CONSISTENT, text, drives=drives, notes=("the launch asked for the path",))
    return Verdict(
        Grade.UNKNOWN, f"{text}: too slow to be a sign of the specialized path", remedy=remedy, drives=drives
    )


def _token_ms(evidence: DriveEvidence) -> float | None:
    """Time of a token at batch 1, its prompt included; None where it says nothing."""
    first = next((phase for phase in evidence.phases if phase.rows == 1), None)
    if first is None or first.generated < MIN_TIMED_TOKENS or not 0 < first.seconds < math.inf:
        return None
    return (
        None if any(foreign(phase) for phase in evidence.phases) else 1000 * first.seconds / first.generated
    )
