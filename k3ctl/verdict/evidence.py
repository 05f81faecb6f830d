"""What a drive left behind, and what is wrong with it. Pure functions.

Every rule here answers one question about one drive (or about all of them together): may these counters be believed,
and do they speak of our requests alone? A rule that is broken makes the verdict *unknown*; a rule that cannot be
checked caps it at *consistent*. ``docs/reference/verify.md`` lists them by name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from k3ctl.server.witness import SPECIALIZED, STANDARD, Counts, StepCount, WorkerPage, difference, total

PATHS = frozenset({SPECIALIZED, STANDARD})
KINDS = frozenset({"decode", "mixed", "prefill"})
MODES = frozenset({"full", "piecewise", "eager"})


@dataclass(frozen=True)
class Phase:
    """One controlled drive: ``rows`` concurrent requests.

    generated/prompted: tokens we received and sent; served_generated/served_prompted: what the server counted
    meanwhile (None when it publishes no metrics). before/after: every witness page that answered then.
    """

    rows: int
    generated: int
    prompted: int
    seconds: float
    served_generated: float | None
    served_prompted: float | None
    busy_before: bool
    before: Sequence[WorkerPage]
    after: Sequence[WorkerPage]

    def counts(self) -> Mapping[int, Counts]:
        """Steps of this drive by rank; without ranks that cannot be told (see ``broken``)."""
        older = {page.rank: page.counts for page in self.before}
        changes = {
            page.rank: difference(older[page.rank], page.counts) for page in self.after if page.rank in older
        }
        return {rank: counts for rank, counts in changes.items() if counts is not None}

    def steps(self) -> Counts:
        """Steps of this drive: of the lowest rank of every engine, since its ranks step together."""
        counts = self.counts()
        lowest: dict[int, int] = {}
        for page in self.after:
            if page.rank in counts:
                lowest[page.engine] = min(page.rank, lowest.get(page.engine, page.rank))
        return total({rank: counts[rank] for rank in lowest.values()})

    @property
    def query_len(self) -> int:
        """Most tokens that one verify step yields per request."""
        return max((page.query_len for page in self.after), default=1)

    def needed(self) -> int:
        """Decode rows (requests × steps) that the generated tokens need at least: prefills yield the first ones."""
        return max(0, math.ceil((self.generated - self.rows) / max(1, self.query_len)))


@dataclass(frozen=True)
class DriveEvidence:
    """What was seen. ``requested``: the launch asked for the specialized path (None: not known).

    ``anchor_step_ms``: published batch-1 step time of this configuration, if there is one.
    """

    phases: Sequence[Phase]
    requested: bool | None = None
    anchor_step_ms: float | None = None


@dataclass(frozen=True)
class Flaw:
    """What is wrong with evidence. ``rule``: its name in the reference."""

    rule: str
    text: str
    remedy: str = "run verify again"


def flaw(evidence: DriveEvidence) -> Flaw | None:
    """The first reason not to believe the counters of these drives; None when they may be believed."""
    for rule in RULES:
        for phase in evidence.phases:
            if (text := rule.broken(phase)) is not None:
                return Flaw(rule.name, text, rule.remedy)
    return _one_deployment(evidence) or asked(evidence)


def doubts(evidence: DriveEvidence) -> Iterator[str]:
    """What could not be checked, one sentence each; any of them rules a proof out."""
    pages = [page for phase in evidence.phases for page in (*phase.before, *phase.after)]
    yield from dict.fromkeys(
        f"rank {page.rank}: vLLM {page.vllm} is not a build the witness knows"
        for page in pages
        if not page.known_build
    )
    if any(None in (phase.served_generated, phase.served_prompted) for phase in evidence.phases):
        yield "`/metrics` cannot be read: whether other requests ran meanwhile is not known"
    if any(page.workers < 1 for page in pages):
        yield "the pages do not say how many workers there are: some may be missing"
    yield from _idle_engines(evidence.phases)
    for rows in dict.fromkeys(phase.rows for phase in evidence.phases):
        missed = [missed_batch(phase) for phase in evidence.phases if phase.rows == rows]
        if all(missed):
            yield missed[-1]


def missed_batch(phase: Phase) -> str:
    """Why a drive does not show its batch: its requests ran one after the other. Empty when they met."""
    alone = [count for key, count in phase.steps().items() if key.kind == "decode"]
    asked = phase.rows / max(1, len({page.engine for page in phase.after}))
    if alone and (mean := sum(c.rows for c in alone) / sum(c.steps for c in alone)) < (1 + asked) / 2:
        return f"{mean:.1f} requests ran at a time: what happens at batch {phase.rows} was not seen"
    return ""


def _idle_engines(phases: Sequence[Phase]) -> Iterator[str]:
    """Every data-parallel engine must have decoded in some drive: what one does says nothing of another."""
    seen = {page.engine for phase in phases for page in phase.after}
    busy = {
        page.engine
        for phase in phases
        for page in phase.after
        if any(key.kind == "decode" for key in phase.counts().get(page.rank, {}))
    }
    for engine in sorted(seen - busy):
        yield f"engine {engine} decoded nothing: which path it takes was not seen (raise `--rows`)"


@dataclass(frozen=True)
class EvidenceRule:
    """``broken`` answers None, or what is wrong with a drive."""

    name: str
    broken: Callable[[Phase], str | None]
    remedy: str


def foreign(phase: Phase) -> str | None:
    """Requests that were not ours, as far as the server's own request counters show."""
    counted = ((phase.served_generated, phase.generated), (phase.served_prompted, phase.prompted))
    if phase.busy_before or any(served is not None and served != ours for served, ours in counted):
        return "other requests ran during the drive, so its steps cannot be told apart"
    return None


def _ranks(phase: Phase) -> str | None:
    for pages, when in ((phase.before, "before"), (phase.after, "after")):
        twice = [rank for rank, n in Counter(page.rank for page in pages).items() if n > 1]
        if twice:
            return f"rank {twice[0]} answered more than once {when} the drive"
    before, after = ({page.rank for page in pages} for pages in (phase.before, phase.after))
    if missing := sorted(after - before):
        return f"no page of rank {missing[0]} from before the drive: its earlier steps cannot be told apart"
    if missing := sorted(before - after):
        return f"rank {missing[0]} did not answer after the drive"
    if not after:
        return "no worker answered"
    workers = {page.workers for page in (*phase.before, *phase.after)}
    if len(workers) > 1:
        return f"ranks disagree on how many workers there are: {', '.join(map(str, sorted(workers)))}"
    expected = max(workers)
    if expected > 0 and after != set(range(expected)):
        return f"{len(after & set(range(expected)))} of {expected} workers answered"
    return None


def _same_workers(phase: Phase) -> str | None:
    older = {page.rank: page for page in phase.before}
    for page in phase.after:
        was = older[page.rank]
        if (was.pid, was.started_at) != (page.pid, page.started_at) or difference(
            was.counts, page.counts
        ) is None:
            return "a worker restarted during the drive"
        if _identity(was) != _identity(page):
            return f"what rank {page.rank} says of itself changed during the drive"
    return None


def _sound(phase: Phase) -> str | None:
    """Counters that could have been counted: every step has a row, every row a token, none more than there are."""
    if phase.rows < 1 or not (math.isfinite(phase.seconds) and phase.seconds > 0):
        return "the drive has no length"
    for page in (*phase.before, *phase.after):
        if page.query_len < 1 or page.max_rows < 1:
            return f"rank {page.rank} does not say what it counts (query length {page.query_len})"
        for key, count in page.counts.items():
            if key.path not in PATHS or key.kind not in KINDS or key.mode not in MODES:
                return f"rank {page.rank} counts steps of an unknown kind: {key.path} {key.kind} {key.mode}"
            if not _countable(count):
                return f"rank {page.rank} counts what cannot be: {_told(count)}"
    older = {page.rank: page.counts for page in phase.before}
    for page in phase.after:
        for key, count in page.counts.items():
            change = count - older[page.rank].get(key, StepCount())
            if not _countable(change) or change.rows > change.steps * phase.rows:
                return f"rank {page.rank} counts what cannot be: {_told(change)} with {phase.rows} requests"
    return None


def _specialized_are_decodes(phase: Phase) -> str | None:
    """The specialized path is of decodes only, of at most ``max_rows`` token rows; on CUDA, in full graphs."""
    for page in phase.after:
        for key, count in phase.counts().get(page.rank, {}).items():
            if key.path != SPECIALIZED:
                continue
            if key.kind != "decode" or key.reason:
                return f"specialized steps that hold prefills ({key.kind} {key.reason}) contradict themselves"
            if page.platform == "cuda" and key.mode != "full":
                return f"specialized steps outside of a full CUDA graph ({key.mode}) contradict themselves"
            if count.tokens > min(count.rows * page.query_len, count.steps * page.max_rows):
                return f"specialized steps with more token rows than they can have: {_told(count)}"
    return None


def _agree(phase: Phase) -> str | None:
    """The ranks of one engine take every step together."""
    engines: dict[int, dict[int, Mapping[tuple[str, str, str], StepCount]]] = {}
    counts = phase.counts()
    for page in phase.after:
        engines.setdefault(page.engine, {})[page.rank] = _by_path(counts.get(page.rank, {}))
    for ranks in engines.values():
        lowest = min(ranks)
        for rank, seen in ranks.items():
            if seen != ranks[lowest]:
                mine, theirs = (_summary(ranks[r]) for r in (lowest, rank))
                return (
                    f"ranks disagree on the steps they took: {mine} on rank {lowest}, {theirs} on rank {rank}"
                )
    return None


def _accounted(phase: Phase) -> str | None:
    """Enough decode rows for the tokens we received, and no more than our requests can have caused."""
    needed, steps = phase.needed(), phase.steps()
    if phase.generated <= phase.rows:
        return "the requests generated no token that a decode step yields"
    rows = sum(count.rows for key, count in steps.items() if key.kind != "prefill")
    if not steps or rows == 0:
        return "the witness counted no decode step during the drive"
    if rows < needed:
        return (
            f"the witness counted {rows:.0f} decode rows, fewer than the {needed} "
            f"that {phase.generated} tokens of {phase.rows} requests need"
        )
    # a prefill row of every request may share a step with decodes, and be counted once more when it is resumed
    if rows > phase.generated + 2 * phase.rows:
        return f"the witness counted {rows:.0f} decode rows, more than {phase.generated} tokens can need"
    return None


_WITNESS_REMEDY = "is the witness of this server's build? see its log for `k3 runtime` warnings"
RULES: Sequence[EvidenceRule] = (
    EvidenceRule("alone", foreign, "run verify while the server is idle"),
    EvidenceRule("every worker", _ranks, "compare the engine logs of the ranks; run verify again"),
    EvidenceRule("same workers", _same_workers, "run verify again"),
    EvidenceRule("sound counters", _sound, _WITNESS_REMEDY),
    EvidenceRule("decodes only", _specialized_are_decodes, "report it, with the server's `/k3/witness`"),
    EvidenceRule("ranks agree", _agree, "compare the engine logs of the ranks"),
    EvidenceRule(
        "tokens accounted", _accounted, _WITNESS_REMEDY
    ),
)  # fmt: skip
"""In this order: later ones rely on earlier ones."""


def _one_deployment(evidence: DriveEvidence) -> Flaw | None:
    """All drives were answered by the same workers of the same deployment."""
    seen = [sorted(map(_worker, phase.after)) for phase in evidence.phases]
    if any(workers != seen[0] for workers in seen):
        return Flaw("same workers", "a worker restarted, came or went between two drives")
    setups = {
        (page.query_len, page.max_rows, page.decode_backend) for p in evidence.phases for page in p.after
    }
    if len(setups) > 1:
        told = ", ".join(f"{backend} with {query} tokens a request" for query, _, backend in sorted(setups))
        return Flaw("ranks agree", f"ranks disagree on the configuration they run: {told}")
    return None


def asked(evidence: DriveEvidence) -> Flaw | None:
    """Specialized steps of a deployment that did not ask for them, or was refused, were not counted by us."""
    if not any(key.path == SPECIALIZED for phase in evidence.phases for key in phase.steps()):
        return None
    for page in (page for phase in evidence.phases for page in phase.after):
        if page.decode_backend in {"", "auto"} or page.refused or page.unavailable:
            text = f"rank {page.rank} counts specialized steps, and says that it cannot have them"
            return Flaw("asked for", text, "report it, with the server's `/k3/witness`")
    if evidence.requested is False:
        return Flaw("asked for", "specialized steps are counted, but the launch did not ask for them")
    return None


def _worker(page: WorkerPage) -> tuple[int, int, int, float]:
    return page.rank, page.engine, page.pid, page.started_at


def _identity(page: WorkerPage) -> tuple[object, ...]:
    return (
        page.engine, page.workers, page.vllm, page.runtime, page.platform, page.decode_backend, page.query_len,
        page.max_rows, page.refused, page.unavailable,
    )  # fmt: skip


def _countable(count: StepCount) -> bool:
    numbers = (count.steps, count.rows, count.tokens)
    whole = all(math.isfinite(number) and number == int(number) for number in numbers)
    return whole and (0 < count.steps <= count.rows <= count.tokens or numbers == (0, 0, 0))


def _told(count: StepCount) -> str:
    return f"{count.steps:g} steps of {count.rows:g} rows and {count.tokens:g} tokens"


def _by_path(counts: Counts) -> Mapping[tuple[str, str, str], StepCount]:
    """Without mode and reason, which a pipeline stage may see differently."""
    found: dict[tuple[str, str, str], StepCount] = {}
    for key, count in counts.items():
        name = (key.path, key.kind, key.slots)
        found[name] = found.get(name, StepCount()) + count
    return found


def _summary(seen: Mapping[tuple[str, str, str], StepCount]) -> str:
    steps = {
        path: sum(count.steps for key, count in seen.items() if key[0] == path) for path in sorted(PATHS)
    }
    return ", ".join(f"{n:.0f} {path}" for path, n in steps.items() if n) or "none"
