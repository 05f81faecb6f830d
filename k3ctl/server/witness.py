"""Which path each engine step took, as the runtime's witness counts it.

The counters reach us twice: as ``k3_*`` series on the metrics page, and as the table of ``GET /k3/witness``,
which adds what no counter can say (why the fast path was refused at start, whether the build is known).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from k3ctl.engine.client import BadAnswer, Client, Unreachable
from k3ctl.server.prometheus import Page
from k3ctl.signals import ROWS, STEPS, TOKENS
from k3ctl.signals import WITNESS_INFO as INFO

FAMILIES = frozenset({STEPS, ROWS, TOKENS, INFO})

ROUTE = "/k3/witness"
TABLE_SCHEMA = "k3.witness.table/1"

REASONS: Mapping[str, str] = {
    "": "specialized",
    "backend-off": "backend off",
    "refused": "refused at start",
    "prefill-in-batch": "prefill in batch",
    "query-length-not-uniform": "unequal query lengths",
    "query-length-not-planned": "unplanned query length",
    "rows-over-limit": "over the row limit",
    "graph-not-specialized": "graph holds standard kernels",
    "slots-stock": "stock kernels in every slot",
}
"""Reason code → what a person reads."""


SPECIALIZED, STANDARD = "specialized", "standard"
STOCK_SLOTS = frozenset({"none", "stock"})
"""What an executor says of its slots when all of them run the engine's kernels."""


@dataclass(frozen=True)
class StepKey:
    """What kind of step: path ran, batch kind, graph mode, and why the path was not specialized.

    ``slots``: which parts of a specialized step ran an executor's own kernels; empty where there is no choice.
    """

    path: str
    kind: str
    mode: str
    reason: str
    slots: str = ""

    @property
    def ran(self) -> str:
        """The path that counts: a specialized step in which every slot runs stock kernels is a standard one."""
        return STANDARD if self.slots in STOCK_SLOTS else self.path

    @property
    def why(self) -> str:
        """Reason code of a step that was standard in this sense; empty for a specialized one."""
        return self.reason or ("slots-stock" if self.slots in STOCK_SLOTS else "")


@dataclass(frozen=True)
class StepCount:
    """Counters since the worker's start. ``rows`` are sequences, ``tokens`` query tokens."""

    steps: float = 0.0
    rows: float = 0.0
    tokens: float = 0.0

    def __add__(self, other: StepCount) -> StepCount:
        return StepCount(self.steps + other.steps, self.rows + other.rows, self.tokens + other.tokens)

    def __sub__(self, other: StepCount) -> StepCount:
        return StepCount(self.steps - other.steps, self.rows - other.rows, self.tokens - other.tokens)


Counts = Mapping[StepKey, StepCount]


@dataclass(frozen=True)
class WorkerPage:
    """One worker's page of the witness table."""

    rank: int
    runtime: str
    vllm: str
    known_build: bool
    platform: str
    decode_backend: str
    max_rows: int
    query_len: int
    refused: tuple[str, ...]
    counts: Counts
    unavailable: tuple[str, ...] = ()
    """Why this deployment cannot have the specialized path, whether or not it asked for it."""
    workers: int = 0
    """How many workers the whole deployment has; 0: an older page, which does not say."""
    engine: int = 0
    """The data-parallel replica it belongs to: its workers take every step together."""
    pid: int = 0
    started_at: float = 0.0
    graphs: tuple[Graph, ...] = ()
    """The captured graphs of the specialized path, smallest first; none where there are no graphs."""


@dataclass(frozen=True)
class Graph:
    """One captured graph: token rows, requests, whose kernels its slots run, and kernels of a layer by kind."""

    tokens: int
    requests: int
    slots: str
    kernels: Mapping[str, float]

    @property
    def choice(self) -> tuple[object, ...]:
        """What its kernels are: two graphs of one choice run the same ones at another size."""
        return (self.slots, *sorted(self.kernels.items()))


@dataclass(frozen=True)
class WitnessInfo:
    """The labels of ``k3_witness_info``: who is counting."""

    vllm: str
    runtime: str
    known_build: bool
    platform: str
    decode_backend: str


def counts_of_page(page: Page) -> Mapping[int, Counts]:
    """Step counters by rank from a metrics page; empty when no witness is on it."""
    fields = {STEPS: "steps", ROWS: "rows", TOKENS: "tokens"}
    found: dict[int, dict[StepKey, dict[str, float]]] = {}
    for (name, label_pairs), value in page.series.items():
        if name not in fields:
            continue
        labels = dict(label_pairs)
        key = _key(labels)
        row = found.setdefault(_rank(labels.get("rank")), {}).setdefault(key, {})
        row[fields[name]] = value
    return {rank: {key: StepCount(**row) for key, row in rows.items()} for rank, rows in found.items()}


def info_of_page(page: Page) -> WitnessInfo | None:
    """The witness's own labels (of the lowest rank); None when no witness is on the page."""
    rows = [dict(labels) for (name, labels), _ in page.series.items() if name == INFO]
    if not rows:
        return None
    first = min(rows, key=lambda labels: _rank(labels.get("rank")))
    return WitnessInfo(
        vllm=first.get("vllm", ""),
        runtime=first.get("runtime", ""),
        known_build=first.get("known_build", "").lower() in {"true", "1"},
        platform=first.get("platform", ""),
        decode_backend=first.get("decode_backend", ""),
    )


def workers_of_table(table: Any) -> tuple[WorkerPage, ...]:
    """Pages of a ``GET /k3/witness`` answer; raises ValueError when it is not such a table."""
    schema = table.get("schema") if isinstance(table, Mapping) else None
    workers = table.get("workers") if schema == TABLE_SCHEMA else None
    if schema != TABLE_SCHEMA or not isinstance(workers, list | tuple):
        raise ValueError(f"not a witness table (schema `{TABLE_SCHEMA}` with `workers` expected)")
    return tuple(_worker(page) for page in workers if isinstance(page, Mapping))


def pages(client: Client) -> tuple[WorkerPage, ...]:
    """Every worker's page; none when the server has no witness.

    Raises:
        Unreachable: nobody answers.
    """
    try:
        return workers_of_table(client.json(ROUTE))
    except Unreachable:
        raise
    except (BadAnswer, ValueError):
        return ()


def total(counts_by_rank: Mapping[int, Counts]) -> Counts:
    """Sum over ranks."""
    summed: dict[StepKey, StepCount] = {}
    for counts in counts_by_rank.values():
        for key, count in counts.items():
            summed[key] = summed.get(key, StepCount()) + count
    return summed


def difference(older: Counts, newer: Counts) -> Counts | None:
    """Steps between two readings; None when any counter went backwards (the worker restarted)."""
    changed = {key: count - older.get(key, StepCount()) for key, count in newer.items()}
    if any(count.steps < 0 for count in changed.values()) or any(key not in newer for key in older):
        return None
    return {key: count for key, count in changed.items() if count.steps > 0}


def decode_steps(counts: Counts) -> float:
    """Steps with at least one decoding request: pure decode and mixed ones."""
    return sum(count.steps for key, count in counts.items() if key.kind in {"decode", "mixed"})


def engagement(counts: Counts) -> float | None:
    """Share of decode and mixed steps that ran the specialized path; None without such steps."""
    steps = decode_steps(counts)
    if steps <= 0:
        return None
    specialized = {key: count for key, count in counts.items() if key.ran == SPECIALIZED}
    return decode_steps(specialized) / steps


def by_reason(counts: Counts) -> tuple[tuple[str, float], ...]:
    """Standard decode and mixed steps by reason code, most first."""
    steps: dict[str, float] = {}
    for key, count in counts.items():
        if key.ran != SPECIALIZED and key.kind in {"decode", "mixed"}:
            steps[key.why] = steps.get(key.why, 0.0) + count.steps
    return tuple(sorted(steps.items(), key=lambda item: (-item[1], item[0])))


def own_slots(counts: Counts) -> tuple[str, ...]:
    """The parts of a layer that ran an executor's own kernels in these steps; none without such an executor."""
    return tuple(sorted({key.slots for key in counts if key.slots and key.ran == SPECIALIZED}))


def _key(labels: Mapping[str, Any]) -> StepKey:
    return StepKey(*(str(labels.get(name, "")) for name in ("path", "kind", "mode", "reason", "slots")))


def _rank(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 0


def _number(value: Any) -> float:
    """A JSON number (NaN and Infinity are ones to Python); 0 for anything else, infinity beyond what a float holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _whole(value: Any) -> int:
    number = _number(value)
    return int(number) if math.isfinite(number) else 0


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(text) for text in value) if isinstance(value, list) else ()


def _worker(page: Mapping[str, Any]) -> WorkerPage:
    steps = page.get("steps")
    counts: dict[StepKey, StepCount] = {}
    for row in steps if isinstance(steps, list) else []:
        if isinstance(row, Mapping):
            count = StepCount(*(_number(row.get(name)) for name in ("steps", "rows", "tokens")))
            counts[_key(row)] = counts.get(_key(row), StepCount()) + count
    return WorkerPage(
        rank=_rank(page.get("rank")),
        runtime=str(page.get("runtime", "")),
        vllm=str(page.get("vllm", "")),
        known_build=page.get("known_build") is True,
        platform=str(page.get("platform", "")),
        decode_backend=str(page.get("decode_backend", "")),
        max_rows=_whole(page.get("max_rows")),
        query_len=_whole(page.get("query_len")),
        refused=_texts(page.get("refused")),
        counts=counts,
        unavailable=_texts(page.get("unavailable")),
        workers=_whole(page.get("workers")),
        engine=_whole(page.get("engine")),
        pid=_whole(page.get("pid")),
        started_at=_number(page.get("started_at")),
        graphs=tuple(_graphs(page.get("graphs"))),
    )


def _graphs(rows: Any) -> Iterator[Graph]:
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, Mapping) and _whole(row.get("requests")) > 0:
            kernels = row.get("kernels")
            counts = {str(k): _number(v) for k, v in kernels.items()} if isinstance(kernels, Mapping) else {}
            yield Graph(_whole(row.get("tokens")), _whole(row["requests"]), str(row.get("slots", "")), counts)
