"""What the server did during one step: differences of counter samples in its measuring window."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from k3ctl.loadtest.scrape import Engagement, Sample


@dataclass(frozen=True)
class PathShare:
    """Which path the engine's steps took. ``prefill_in_batch`` steps are standard by design."""

    specialized: int
    decode_and_mixed: int
    reasons: Mapping[str, int]

    @property
    def share(self) -> float | None:
        """Specialized steps of all decode and mixed steps; None when there were none."""
        return self.specialized / self.decode_and_mixed if self.decode_and_mixed else None

    @property
    def decode_share(self) -> float | None:
        """The same without the steps that carried a prefill."""
        decode = self.decode_and_mixed - self.reasons.get("prefill-in-batch", 0)
        return self.specialized / decode if decode > 0 else None


@dataclass(frozen=True)
class ServerWindow:
    """Server-side figures of a window; None where the server does not export the series."""

    seconds: float
    output_tok_s: float | None = None
    acceptance_length: float | None = None
    """Tokens per verify step, bonus token included: 1 + accepted / drafts."""
    acceptance_per_position: tuple[float, ...] = ()
    drafts: float = 0.0
    draft_length: float | None = None
    prefix_hit_share: float | None = None
    preemptions: float | None = None
    tpot_ms: float | None = None
    """Mean over requests that finished in the window, by the server: (last − first token) / (tokens − 1)."""
    path: PathShare | None = None
    restarted: bool = False
    clock_jump_s: float = 0.0
    samples: int = 0


@dataclass(frozen=True)
class _Pair:
    first: Sample
    last: Sample
    between: Sequence[Sample] = field(default=())

    def delta(self, name: str) -> float | None:
        before, after = getattr(self.first, name), getattr(self.last, name)
        return None if before is None or after is None else float(after) - float(before)

    def ratio(self, numerator: str, denominator: str) -> float | None:
        top, bottom = self.delta(numerator), self.delta(denominator)
        return None if top is None or not bottom else top / bottom


def server_window(samples: Sequence[Sample], start: float | None, end: float | None) -> ServerWindow | None:
    """Differences between the samples in ``start..end`` (unix seconds); None with fewer than two.

    A window shorter than the sampling interval is widened by one sample on each side.
    """
    chosen = [s for s in samples if (start is None or s.ts >= start) and (end is None or s.ts <= end)]
    if len(chosen) < 2:
        before = [s for s in samples if start is not None and s.ts < start][-1:]
        after = [s for s in samples if end is not None and s.ts > end][:1]
        chosen = [*before, *chosen, *after]
    if len(chosen) < 2:
        return None
    pair = _Pair(chosen[0], chosen[-1], chosen)
    seconds = pair.last.mono - pair.first.mono
    tokens = pair.delta("generation_tokens")
    restarted = _restarted(chosen)
    if seconds <= 0 or restarted:
        return ServerWindow(seconds=max(seconds, 0.0), restarted=restarted, samples=len(chosen))
    accepted = pair.ratio("accepted_tokens", "drafts")
    tpot_s = pair.ratio("tpot_sum_s", "tpot_count")
    return ServerWindow(
        seconds=seconds,
        output_tok_s=None if tokens is None else tokens / seconds,
        acceptance_length=None if accepted is None else 1.0 + accepted,
        acceptance_per_position=_per_position(pair),
        drafts=pair.delta("drafts") or 0.0,
        draft_length=pair.ratio("draft_tokens", "drafts"),
        prefix_hit_share=pair.ratio("prefix_hits", "prefix_queries"),
        preemptions=pair.delta("preemptions"),
        tpot_ms=None if tpot_s is None else tpot_s * 1000,
        path=_path(pair.first.engagement, pair.last.engagement),
        clock_jump_s=clock_jump(chosen),
        samples=len(chosen),
    )


def clock_jump(samples: Sequence[Sample]) -> float:
    """Largest jump of the wall clock against the steady clock between two samples, in seconds."""
    offsets = [sample.ts - sample.mono for sample in samples]
    return max((abs(b - a) for a, b in itertools.pairwise(offsets)), default=0.0)


def _restarted(samples: Sequence[Sample]) -> bool:
    """Whether the server or an engine behind it is a new one: a start time moved or a counter fell."""
    for before, after in itertools.pairwise(samples):
        for name in ("generation_tokens", "prompt_tokens"):
            old, new = getattr(before, name), getattr(after, name)
            if old is not None and new is not None and new < old:
                return True
        if before.process_start and after.process_start and after.process_start != before.process_start:
            return True
        if (
            before.engagement
            and after.engagement
            and after.engagement.started_at > before.engagement.started_at
        ):
            return True
    return False


def _per_position(pair: _Pair) -> tuple[float, ...]:
    drafts = pair.delta("drafts")
    before, after = pair.first.accepted_per_position, pair.last.accepted_per_position
    if not drafts or not after:
        return ()
    padded = (*before, *(0.0 for _ in range(len(after) - len(before))))
    return tuple((new - old) / drafts for old, new in zip(padded, after, strict=True))


def _path(before: Engagement | None, after: Engagement | None) -> PathShare | None:
    if before is None or after is None:
        return None
    reasons = {name: count - before.reasons.get(name, 0) for name, count in after.reasons.items()}
    return PathShare(
        specialized=after.specialized - before.specialized,
        decode_and_mixed=after.decode_and_mixed - before.decode_and_mixed,
        reasons={name: count for name, count in reasons.items() if count},
    )
