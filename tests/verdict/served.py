"""A server that is simulated step by step, and the pages its workers would show: evidence with a known truth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from k3ctl.server.witness import StepCount, StepKey, WorkerPage
from k3ctl.verdict.evidence import DriveEvidence, Phase

SPECIALIZED = StepKey("specialized", "decode", "full", "")
PREFILL = StepKey("standard", "prefill", "eager", "prefill-in-batch")
MIXED = StepKey("standard", "mixed", "eager", "prefill-in-batch")
OVER = StepKey("standard", "decode", "full", "rows-over-limit")


@dataclass(frozen=True)
class Step:
    """One step of one engine: ``rows`` sequences, ``tokens`` query tokens, ``generated`` tokens that it yields."""

    key: StepKey
    rows: int
    tokens: int
    generated: int


def decodes(
    rows: int, steps: int, *, query: int = 1, accepted: int = 1, key: StepKey = SPECIALIZED
) -> list[Step]:
    return [Step(key, rows, rows * query, rows * accepted)] * steps


def drive(rows: int, tokens: int = 48, *, query: int = 1, key: StepKey = SPECIALIZED) -> list[Step]:
    """All prompts in the first step, then decodes until every request has its tokens; each draft is accepted."""
    steps = [Step(PREFILL, rows, 8 * rows, rows)]
    left = tokens - 1
    while left:
        accepted = min(query, left)
        steps += decodes(rows, 1, query=query, accepted=accepted, key=key)
        left -= accepted
    return steps


def add(counts: dict[StepKey, StepCount], steps: Iterable[Step]) -> dict[StepKey, StepCount]:
    counts = dict(counts)
    for step in steps:
        counts[step.key] = counts.get(step.key, StepCount()) + StepCount(1, step.rows, step.tokens)
    return counts


def pages(
    counts: Sequence[dict[StepKey, StepCount]], ranks: int, query: int, **about: Any
) -> tuple[WorkerPage, ...]:
    """``counts``: per engine. Workers of an engine count the same."""
    return tuple(
        replace(
            WorkerPage(
                rank=engine * ranks + rank, runtime="0.1.0", vllm="0.33.0", known_build=True, platform="cuda",
                decode_backend="latency_specialized", max_rows=64, query_len=query, refused=(), counts=dict(seen),
                workers=ranks * len(counts), engine=engine, pid=100 + engine * ranks + rank, started_at=1.7e9,
            ),
            **about,
        )
        for engine, seen in enumerate(counts)
        for rank in range(ranks)
    )  # fmt: skip


def phase(
    rows: int, steps: Sequence[Step], *, ranks: int = 1, query: int = 1,
    history: Sequence[Step] = (), other_engine: Sequence[Step] | None = None, **about: Any,
) -> Phase:  # fmt: skip
    """The drive in which one engine took ``steps`` (and another one ``other_engine``'s)."""
    engines = [steps] if other_engine is None else [steps, other_engine]
    old = [add({}, history) for _ in engines]
    new = [add(seen, taken) for seen, taken in zip(old, engines, strict=True)]
    generated = sum(step.generated for taken in engines for step in taken)
    return Phase(
        rows=rows, generated=generated, prompted=8 * rows, seconds=0.25, served_generated=float(generated),
        served_prompted=8.0 * rows, busy_before=False, before=pages(old, ranks, query, **about),
        after=pages(new, ranks, query, **about),
    )  # fmt: skip


def evidence(*phases: Phase, requested: bool | None = True) -> DriveEvidence:
    return DriveEvidence(phases, requested)


def good(*, ranks: int = 2, rows: int = 4, tokens: int = 48, query: int = 1, **about: Any) -> DriveEvidence:
    """What a server on the specialized path leaves behind: a drive at batch 1, then one at ``rows``."""
    first = drive(1, tokens, query=query)
    second = drive(rows, tokens, query=query)
    history = [Step(PREFILL, 3, 90, 3), *decodes(3, 20, query=query)]
    return evidence(
        phase(1, first, ranks=ranks, query=query, history=history, **about),
        phase(rows, second, ranks=ranks, query=query, history=[*history, *first], **about),
    )
