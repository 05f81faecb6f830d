"""Which path a step takes, and why.

``plan()`` is the one place that chooses between the *standard* path (any batch) and the *specialized* decode path
(pure decode, or uniform speculative verify, up to ``max_rows`` token rows), whatever hardware runs it. It names every
reason for refusing, in a fixed order; the first one labels the step in the witness.

The conditions mirror vLLM 0.33.0's in-tree specialized decode (uniform 1 or 1+K tokens per sequence, no prefill in
the step, at most 64 token rows), so that shares counted here mean the same there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

MAX_ROWS = 64
"""Token rows of the largest specialized step."""


class Path(StrEnum):
    """Which implementation runs a step."""

    SPECIALIZED = "specialized"
    STANDARD = "standard"


class Kind(StrEnum):
    """What a step holds: decodes (drafts included), prefills, or both."""

    DECODE = "decode"
    MIXED = "mixed"
    PREFILL = "prefill"


class Reason(StrEnum):
    """Why a step is not specialized, most general first."""

    BACKEND_OFF = "backend-off"
    REFUSED = "refused"
    PREFILL = "prefill-in-batch"
    NOT_UNIFORM = "query-length-not-uniform"
    NOT_PLANNED = "query-length-not-planned"
    TOO_MANY_ROWS = "rows-over-limit"


@dataclass(frozen=True)
class DecodeSetup:
    """What was decided when the engine started.

    ``requested``: the switch asked for the specialized path. ``refused``: why the configuration cannot have it.
    ``query_len``: tokens per sequence of a verify step (1 + num_speculative_tokens).
    """

    requested: bool
    query_len: int = 1
    max_rows: int = MAX_ROWS
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Batch:
    """One step's sequences: query_lens and seq_lens (this step's tokens included), one entry per sequence.

    ``drafts``: draft tokens per sequence as the scheduler counts them (-1: not a decode), or None without speculation.
    """

    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    drafts: tuple[int, ...] | None = None

    @property
    def tokens(self) -> int:
        """Token rows of the step."""
        return sum(self.query_lens)

    def computed(self, i: int) -> int:
        """Tokens of sequence ``i`` that earlier steps have processed."""
        return self.seq_lens[i] - self.query_lens[i]

    def is_decode(self, i: int) -> bool:
        """Whether sequence ``i`` decodes: one token of a finished prompt, or one token and its drafts.

        A prompt of one token may come with (placeholder) drafts in its very first step, when vLLM's scheduler pads it
        to the others' length: a verify row without any state before it.
        """
        drafts = self.drafts[i] if self.drafts is not None else -1
        if drafts >= 0:
            return self.query_lens[i] == 1 + drafts
        return self.query_lens[i] == 1 and self.computed(i) > 0


@dataclass(frozen=True)
class Plan:
    """The decision for one step: its path, what it holds, the uniform query length when specialized."""

    path: Path
    kind: Kind
    reasons: tuple[Reason, ...]
    query_len: int

    @property
    def reason(self) -> str:
        """The label of the step in the witness: empty when specialized."""
        return self.reasons[0].value if self.reasons else ""


def plan(batch: Batch, setup: DecodeSetup) -> Plan:
    """Choose the path of one step and say every reason for not choosing the specialized one.

    Raises ``ValueError`` for an empty batch.
    """
    if not batch.query_lens:
        raise ValueError("a step holds at least one sequence")
    decodes = [batch.is_decode(i) for i in range(len(batch.query_lens))]
    kind = Kind.DECODE if all(decodes) else Kind.MIXED if any(decodes) else Kind.PREFILL
    reasons = tuple(_refusals(batch, setup, kind))
    path = Path.STANDARD if reasons else Path.SPECIALIZED
    return Plan(path, kind, reasons, batch.query_lens[0] if not reasons else 0)


def _refusals(batch: Batch, setup: DecodeSetup, kind: Kind) -> Sequence[Reason]:
    lengths = set(batch.query_lens)
    checks = (
        (not setup.requested, Reason.BACKEND_OFF),
        (bool(setup.refused), Reason.REFUSED),
        (kind is not Kind.DECODE, Reason.PREFILL),
        (kind is Kind.DECODE and len(lengths) > 1, Reason.NOT_UNIFORM),
        (
            kind is Kind.DECODE and len(lengths) == 1 and not lengths <= {1, setup.query_len},
            Reason.NOT_PLANNED,
        ),
        (batch.tokens > setup.max_rows, Reason.TOO_MANY_ROWS),
    )
    return [reason for failed, reason in checks if failed]
