"""From evidence to a verdict. Pure functions.

*proved*: counters of a build we know say that the decodes we drove took the specialized path.
*consistent*: no such counters, but configuration and measured step time agree with it.
*not engaged*: counters say that the decodes took the standard path, and why.
*unknown*: the evidence does not allow a statement; the reason says what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from k3ctl.server.witness import Counts, WorkerPage, by_reason, decode_steps, difference, engagement

PROVED_SHARE = 0.95
"""Share of decode steps of the batch-1 drive that must be specialized: its one prefill step may mix once."""
STEP_TIME_TOLERANCE = 0.25
"""How far a measured batch-1 step may lie above the published one and still agree with it."""


class Grade(StrEnum):
    """Strength of the answer."""

    PROVED = "proved"
    CONSISTENT = "consistent"
    NOT_ENGAGED = "not engaged"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Phase:
    """One controlled drive: ``rows`` concurrent requests.

    generated/prompted: tokens we received and sent; served_generated/served_prompted: what the server counted
    meanwhile (None when it publishes no metrics). before/after: witness pages by rank.
    """

    rows: int
    generated: int
    prompted: int
    seconds: float
    served_generated: float | None
    served_prompted: float | None
    busy_before: bool
    before: Mapping[int, WorkerPage]
    after: Mapping[int, WorkerPage]

    def foreign(self) -> bool:
        """Whether requests that we did not send ran at the same time."""
        counted = ((self.served_generated, self.generated), (self.served_prompted, self.prompted))
        return self.busy_before or any(served is not None and served != ours for served, ours in counted)

    def counts(self) -> Mapping[int, Counts | None]:
        """Steps of this drive by rank; None where a counter went backwards."""
        empty: Counts = {}
        return {
            rank: difference(self.before[rank].counts if rank in self.before else empty, page.counts)
            for rank, page in self.after.items()
        }


@dataclass(frozen=True)
class Evidence:
    """What was seen. ``requested``: the launch asked for the specialized path (None: not known).

    ``anchor_step_ms``: published batch-1 step time of this configuration, if there is one.
    """

    phases: Sequence[Phase]
    requested: bool | None = None
    anchor_step_ms: float | None = None


@dataclass(frozen=True)
class Drive:
    """One phase, counted: steps of the lowest rank."""

    rows: int
    tokens: int
    steps: Counts
    share: float | None
    step_ms: float | None


@dataclass(frozen=True)
class Verdict:
    """The answer, what it rests on, and what to change."""

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
    "graph-not-specialized": "the captured graphs hold standard kernels: check cudagraph capture sizes and "
    "`decode_backend` at start",
}


def judge(evidence: Evidence) -> Verdict:
    """The verdict on a server, from at least one phase; the first phase is the batch-1 drive."""
    drives = tuple(_drive(phase) for phase in evidence.phases)
    first = evidence.phases[0]
    if any(phase.foreign() for phase in evidence.phases):
        return Verdict(
            Grade.UNKNOWN,
            "other requests ran during the drive, so its steps cannot be told apart",
            remedy="run verify while the server is idle",
            drives=drives,
        )
    if not first.after:
        return _without_counters(evidence, drives)
    return _counted(evidence, drives)


def _drive(phase: Phase) -> Drive:
    by_rank = phase.counts()
    counts = (by_rank[min(by_rank)] if by_rank else None) or {}
    steps = decode_steps(counts)
    step_ms = 1000 * phase.seconds / steps if steps and phase.rows == 1 else None
    return Drive(phase.rows, phase.generated, counts, engagement(counts), step_ms)


def _counted(evidence: Evidence, drives: Sequence[Drive]) -> Verdict:
    pages = list(evidence.phases[0].after.values())
    restarted = [r for phase in evidence.phases for r, c in phase.counts().items() if c is None]
    if restarted:
        return Verdict(
            Grade.UNKNOWN, "a worker restarted during the drive", remedy="run verify again", drives=drives
        )
    shares = {engagement(c or {}) for c in evidence.phases[0].counts().values()}
    if shares == {None}:
        return Verdict(
            Grade.UNKNOWN,
            "the witness counted no decode step during the drive",
            remedy="is the witness of this server's build? see its log for `k3 runtime` warnings",
            drives=drives,
        )
    if len(shares) > 1:
        return Verdict(
            Grade.UNKNOWN,
            f"ranks disagree on the path: {sorted(str(s) for s in shares)}",
            remedy="compare the engine logs of the ranks",
            drives=drives,
        )
    share = drives[0].share or 0.0
    notes = tuple(
        f"rank {p.rank}: vLLM {p.vllm} is not a build the witness knows" for p in pages if not p.known_build
    )
    if any(phase.served_generated is None for phase in evidence.phases):
        notes += ("`/metrics` cannot be read: whether other requests ran meanwhile is not known",)
    if share >= PROVED_SHARE:
        grade = Grade.CONSISTENT if notes else Grade.PROVED
        return Verdict(grade, _engaged_statement(drives), share, drives=drives, notes=notes)
    reason = (by_reason(drives[0].steps) or (("", 0.0),))[0][0]
    return Verdict(
        Grade.NOT_ENGAGED,
        f"{1 - share:.0%} of the decode steps at batch 1 took the standard path",
        share,
        reason,
        _remedy(reason, pages[0]),
        drives,
        notes + tuple(f"refused at start: {text}" for text in pages[0].refused),
    )


def _remedy(reason: str, page: WorkerPage) -> str:
    """Never the advice to ask for what this deployment cannot have."""
    if reason == "backend-off" and page.unavailable:
        return f"none on this deployment: {'; '.join(page.unavailable)}"
    return REMEDIES.get(reason, "")


def _engaged_statement(drives: Sequence[Drive]) -> str:
    steps = sum(decode_steps(d.steps) for d in drives)
    specialized = sum(c.steps for d in drives for key, c in d.steps.items() if key.path == "specialized")
    return f"{specialized:.0f} of {steps:.0f} decode steps took the specialized path"


def _without_counters(evidence: Evidence, drives: Sequence[Drive]) -> Verdict:
    missing = "the server exports no witness counters"
    if evidence.requested is False:
        return Verdict(
            Grade.NOT_ENGAGED,
            "the launch did not ask for the specialized path",
            reason="backend-off",
            remedy=REMEDIES["backend-off"],
            drives=drives,
        )
    first = evidence.phases[0]
    if evidence.requested and evidence.anchor_step_ms and first.generated > 1:
        step_ms = 1000 * first.seconds / first.generated
        text = f"{missing}; {step_ms:.2f} ms a token at batch 1, published {evidence.anchor_step_ms:.2f} ms"
        if step_ms <= evidence.anchor_step_ms * (1 + STEP_TIME_TOLERANCE):
            return Verdict(Grade.CONSISTENT, text, drives=drives)
        return Verdict(
            Grade.NOT_ENGAGED,
            f"{text}: too slow for the specialized path",
            reason="step-time",
            remedy="start the server with `k3ctl serve` to have its steps counted",
            drives=drives,
        )
    return Verdict(
        Grade.UNKNOWN,
        missing,
        remedy="start the server with `k3ctl serve`, or with the runtime's plugins in VLLM_PLUGINS",
        drives=drives,
    )
