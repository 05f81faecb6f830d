"""Acceptance per request and by context, where the server tells it. Pure.

vLLM 0.33.0 with ``--per-request-spec-decode-metrics summary`` adds verify steps and accepted drafts to each answer
(``metrics.speculative_decoding``); GuideLLM and aiperf hand them on. The mean over requests is not the speed: a request
of few steps weighs as much there as one of many. Tokens per step is what a step's time divides by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from k3ctl.loadtest.events import Event

EDGES = (1024, 4096, 16_384, 65_536, 262_144)
"""Prompt lengths, in tokens, at which a context bucket ends."""


@dataclass(frozen=True)
class Accepted:
    """One request: its prompt length (None: not told), verify steps, drafts proposed (None: not told), and accepted."""

    prompt_tokens: int | None
    steps: int
    drafted: int | None
    accepted: int

    @property
    def length(self) -> float:
        """Tokens per verify step, the bonus token included."""
        return 1.0 + self.accepted / self.steps


@dataclass(frozen=True)
class Acceptance:
    """Of several requests. ``length``: tokens per step over all steps; ``request_mean``: mean of the requests' own."""

    requests: int
    steps: int
    length: float
    request_mean: float
    draft_share: float | None
    """Accepted over proposed drafts."""


def of(requests: Iterable[Event], start: float | None = None, end: float | None = None) -> list[Accepted]:
    """The completed requests that ended in ``start..end`` and tell their acceptance; contradictions are left out."""
    found = []
    for event in requests:
        if event.get("kind") != "request" or event.get("status") != "completed":
            continue
        ended = _ended(event)
        if (start is not None and ended < start) or (end is not None and ended > end):
            continue
        if (one := _one(event)) is not None:
            found.append(one)
    return found


def summed(found: Sequence[Accepted]) -> Acceptance | None:
    """One figure over requests; None without any."""
    if not found:
        return None
    steps, accepted = sum(one.steps for one in found), sum(one.accepted for one in found)
    drafted = sum(one.drafted for one in found if one.drafted is not None)
    told = all(one.drafted is not None for one in found)
    return Acceptance(
        requests=len(found),
        steps=steps,
        length=1.0 + accepted / steps,
        request_mean=sum(one.length for one in found) / len(found),
        draft_share=accepted / drafted if drafted and told else None,
    )


def by_context(found: Sequence[Accepted]) -> list[tuple[int, int | None, Acceptance]]:
    """(first prompt length, last one or None, acceptance) of every bucket that has a request."""
    starts = (0, *EDGES)
    ends: tuple[int | None, ...] = (*EDGES, None)
    out = []
    for first, end in zip(starts, ends, strict=True):
        inside = [
            one
            for one in found
            if one.prompt_tokens is not None
            and one.prompt_tokens >= first
            and (end is None or one.prompt_tokens < end)
        ]
        if (whole := summed(inside)) is not None:
            out.append((first, None if end is None else end - 1, whole))
    return out


def _ended(event: Event) -> float:
    """When the answer was complete; the event itself is written a little later."""
    if event.get("start_ts") is not None and event.get("latency_s") is not None:
        return float(event["start_ts"] + event["latency_s"])
    return float(event["ts"])


def _one(event: Event) -> Accepted | None:
    server = event.get("server")
    told = server.get("speculative_decoding") if isinstance(server, Mapping) else None
    if not isinstance(told, Mapping):
        return None
    steps, drafted, accepted = (
        _count(told, name) for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    )
    if not steps or accepted is None or (drafted is not None and accepted > drafted):
        return None
    prompt = event.get("inp")
    return Accepted(int(prompt) if isinstance(prompt, int | float) else None, steps, drafted, accepted)


def _count(told: Mapping[str, Any], name: str) -> int | None:
    value = told.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
