"""What the witness says of a check's interval. Pure.

Prefill is always standard, and a decode that shares a step with one is; what counts is pure decode steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from k3ctl.server.witness import SPECIALIZED, STANDARD, Counts, StepCount, StepKey
from k3ctl.verdict import evidence
from k3ctl.verdict.evidence import Phase
from k3ctl.verdict.judge import PROVED_SHARE


class Standing(StrEnum):
    """What the decode steps of an interval show."""

    ON_PATH = "on the claimed path"
    OFF_PATH = "not on the claimed path"
    NO_DECODES = "no decode step"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Seen:
    """What was seen of an interval: ``phase`` with ``rows`` requests of ours; ``peak`` of them at once.

    ``open_requests``: their token counts are not known (aborted, or sent by a client of others); they may have cost up
    to ``open_tokens`` tokens.
    """

    phase: Phase
    peak: int = 1
    open_requests: int = 0
    open_tokens: float = 0.0


@dataclass(frozen=True)
class Interval:
    """The record of an interval, as it is kept with the result.

    decode_steps: pure decode steps; on_path: those on the claimed path; batch: requests per pure decode step in the
    mean; steps: every kind with its counts.
    """

    claimed: str
    standing: Standing
    reason: str
    requests: int
    peak: int
    prompt_tokens: int
    completion_tokens: int
    decode_steps: float = 0.0
    on_path: float = 0.0
    mixed_steps: float = 0.0
    batch: float | None = None
    steps: tuple[Mapping[str, Any], ...] = ()
    workers: tuple[Mapping[str, Any], ...] = ()

    def json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def claimed(backends: frozenset[str]) -> str:
    """The path that the workers were started for; empty when they disagree or there is none."""
    paths = {STANDARD if backend in {"", "auto", "stock"} else SPECIALIZED for backend in backends}
    return paths.pop() if len(paths) == 1 else ""


def read(seen: Seen) -> Interval:
    """The record of an interval."""
    phase = seen.phase
    path = claimed(frozenset(page.decode_backend for page in (*phase.before, *phase.after)))
    counts = phase.steps()
    decodes = {key: count for key, count in counts.items() if key.kind == "decode"}
    steps = sum(count.steps for count in decodes.values())
    on_path = sum(count.steps for key, count in decodes.items() if key.ran == path)
    reason = flaw(seen, path)
    if reason is not None:
        standing = Standing.UNKNOWN
    elif not steps:
        standing, reason = Standing.NO_DECODES, "no pure decode step: prompts were in all of them"
    elif on_path < PROVED_SHARE * steps:
        standing, reason = Standing.OFF_PATH, _off_path(decodes, path, steps - on_path, steps)
    else:
        standing, reason = Standing.ON_PATH, f"{on_path:.0f} of {steps:.0f} decode steps {path}"
    return Interval(
        claimed=path,
        standing=standing,
        reason=reason,
        requests=phase.rows,
        peak=seen.peak,
        prompt_tokens=phase.prompted,
        completion_tokens=phase.generated,
        decode_steps=steps,
        on_path=on_path,
        mixed_steps=sum(count.steps for key, count in counts.items() if key.kind == "mixed"),
        batch=rows_of(counts),
        steps=tuple({**asdict(key), **asdict(count)} for key, count in counts.items()),
        workers=tuple(
            {"rank": page.rank, "pid": page.pid, "started_at": page.started_at} for page in phase.after
        ),
    )


def rows_of(counts: Counts) -> float | None:
    """Requests of a pure decode step, in the mean; None without one."""
    alone = [count for key, count in counts.items() if key.kind == "decode"]
    steps = sum(count.steps for count in alone)
    return sum(count.rows for count in alone) / steps if steps else None


def flaw(seen: Seen, path: str) -> str | None:
    """Why the counters of an interval say nothing; None when they may be believed."""
    phase = seen.phase
    if not phase.before and not phase.after:
        return "the server exports no witness counters"
    if phase.rows < 1:
        return "no request was answered"
    if not path:
        return "the workers disagree on the path that they were started for"
    for text in _broken(seen):
        return text
    return None


def _broken(seen: Seen) -> Iterator[str]:
    """What is wrong, worst first: verify's rules of evidence, with two of them read for many unequal requests."""
    phase = seen.phase
    if None in (phase.served_generated, phase.served_prompted):
        yield "`/metrics` cannot be read: whether other requests ran meanwhile is not known"
    if (text := _others(seen)) is not None:
        yield text
    for rule in evidence.RULES:
        if rule.name not in {"alone", "tokens accounted"} and (text := rule.broken(phase)) is not None:
            yield text
    if odd := [page.vllm or "(not told)" for page in phase.after if not page.known_build]:
        yield f"vLLM {odd[0]} is not a build the witness knows"
    if any(page.workers < 1 for page in phase.after):
        yield "the pages do not say how many workers there are: some may be missing"
    if (found := evidence.asked(evidence.DriveEvidence([phase]))) is not None:
        yield found.text
    if (text := _accounted(seen)) is not None:
        yield text


def _others(seen: Seen) -> str | None:
    """Requests that were not ours. Those of ours whose tokens are not known widen what may be there."""
    phase = seen.phase
    if phase.busy_before:
        return "other requests ran at the start"
    pairs = (
        (phase.served_generated, phase.generated, "generated"),
        (phase.served_prompted, phase.prompted, "read"),
    )
    for served, ours, did in pairs:
        if served is None:
            continue
        if served < ours:
            return f"the server {did} {served:.0f} tokens, our answers count {ours}: they came from elsewhere"
        if served > ours + seen.open_tokens:
            return f"the server {did} {served:.0f} tokens, ours were {ours}: other requests ran"
    return None


def _accounted(seen: Seen) -> str | None:
    """Enough decode rows for the tokens we received, and no more pure ones than those can have caused."""
    phase = seen.phase
    counts = phase.steps()
    alone = _rows(counts.items(), {"decode"})
    needed = phase.needed()
    if _rows(counts.items(), {"decode", "mixed"}) < needed:
        return f"the witness counted fewer decode rows than the {needed} that {phase.generated} tokens need"
    if alone > phase.generated + seen.open_tokens:
        return f"the witness counted {alone:.0f} decode rows, more than {phase.generated} tokens can need"
    return None


def _rows(counts: Any, kinds: set[str]) -> float:
    return math.fsum(count.rows for key, count in counts if key.kind in kinds)


def _off_path(decodes: Mapping[StepKey, StepCount], path: str, off: float, steps: float) -> str:
    reasons: dict[str, float] = {}
    for key, count in decodes.items():
        if key.ran != path:
            name = key.reason or (f"slots {key.slots}" if key.slots else key.ran)
            reasons[name] = reasons.get(name, 0.0) + count.steps
    why = ", ".join(f"{name} ({n:.0f})" for name, n in sorted(reasons.items(), key=lambda item: -item[1]))
    return f"{off:.0f} of {steps:.0f} decode steps were not {path}: {why}"
