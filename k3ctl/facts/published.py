"""Published numbers, read from ``published.yaml``: servers, kernels, acceptance, scores. None of them is ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Row:
    """One number: ``value`` at ``concurrency`` (None: not stated), ``low..high`` as its own arithmetic allows.

    ``completed``: requests behind it; ``speedup``: over the standard path under the same conditions; ``stock``: the
    standard path's value.
    """

    concurrency: int | None
    value: float
    low: float | None = None
    high: float | None = None
    completed: int | None = None
    note: str = ""
    speedup: float | None = None
    stock: float | None = None
    ttft_ms: float | None = None
    itl_ms: float | None = None
    latency_s: float | None = None
    output_tok_s_per_gpu: float | None = None


@dataclass(frozen=True)
class Anchor:
    """A server's published rows and the conditions that a comparison needs; None: the source does not say."""

    id: str
    source: str
    date: str
    engine: str
    gpu: str | None
    gpus: int | None
    tensor_parallel_size: int | None
    path: str | None
    num_speculative_tokens: int | None
    acceptance: str | None
    prompt_tokens: int | None
    output_tokens: int | None
    unit: str
    rows: tuple[Row, ...]
    acceptance_length: float | None = None

    @property
    def cited(self) -> str:
        """Where it is from, with its date."""
        return f"{self.source}, {self.date}"


@dataclass(frozen=True)
class KernelAnchor:
    """Published µs of one kernel or layer by rows."""

    id: str
    what: str
    gpu: str
    source: str
    date: str
    us: Mapping[int, float]


@dataclass(frozen=True)
class LayerAnchor:
    """One KDA + MoE layer on the standard and the specialized path: kernels, and µs."""

    source: str
    date: str
    kernels: Mapping[str, int]
    us: Mapping[str, float]


@dataclass(frozen=True)
class DecodeCurve:
    """Decode-only tok/s of a whole tensor-parallel group on the specialized path, and its speed-up, by batch."""

    gpu: str
    tp: int
    batches: tuple[int, ...]
    tok_s: tuple[float, ...]
    speedup: tuple[float, ...]
    source: str


@dataclass(frozen=True)
class Acceptance:
    """Mean tokens per verify step for K = 1 … 8 drafts, the bonus token included."""

    source: str
    date: str
    sampled: tuple[float, ...]
    greedy: tuple[float, ...]

    def length(self, drafts: int, *, greedy: bool = False) -> float | None:
        """The mean for ``drafts`` draft tokens, 1 without drafts; None beyond the curve."""
        curve = (1.0, *(self.greedy if greedy else self.sampled))
        return curve[drafts] if 0 <= drafts < len(curve) else None


@dataclass(frozen=True)
class Accuracy:
    """A score of the model on a question set. ``settings``: what moves it; None: the source does not state it.

    ``right``: right answers, where they are stated; ``filter``: how answers were read out of the text.
    """

    id: str
    set: str
    source: str
    date: str
    score: float
    right: int | None
    questions: int
    filter: str | None
    settings: Mapping[str, Any]

    @property
    def cited(self) -> str:
        """Where it is from, with its date."""
        return f"{self.source}, {self.date}"


@cache
def anchors() -> tuple[Anchor, ...]:
    """All servers, in the file's order."""
    found = []
    for entry in _file()["servers"]:
        rows = tuple(Row(**row) for row in entry["rows"])
        found.append(Anchor(**{**entry, "date": str(entry["date"]), "rows": rows}))
    return tuple(found)


def anchor(name: str) -> Anchor:
    """The server entry with this id; raises ``KeyError``."""
    return next((entry for entry in anchors() if entry.id == name), None) or _missing(name)


@cache
def kernels() -> tuple[KernelAnchor, ...]:
    """All kernels, in the file's order."""
    return tuple(KernelAnchor(**{**entry, "date": str(entry["date"])}) for entry in _file()["kernels"])


@cache
def layer() -> LayerAnchor:
    """The published layer."""
    entry = _file()["layer"]
    return LayerAnchor(**{**entry, "date": str(entry["date"])})


@cache
def acceptance() -> Acceptance:
    """The golden acceptance curve: coding prompts, DSpark."""
    entry = _file()["acceptance"]
    curves = {name: tuple(entry[name]) for name in ("sampled", "greedy")}
    return Acceptance(**{**entry, "date": str(entry["date"]), **curves})


@cache
def accuracies() -> tuple[Accuracy, ...]:
    """All scores, in the file's order."""
    return tuple(Accuracy(**{**entry, "date": str(entry["date"])}) for entry in _file()["accuracy"])


def accuracy(name: str) -> tuple[Accuracy, ...]:
    """The scores on one question set; none for a set without a published one."""
    return tuple(entry for entry in accuracies() if entry.set == name)


@cache
def decode_curves() -> tuple[DecodeCurve, ...]:
    """The curves of the specialized path without speculation whose speed-up is published too."""
    return tuple(_curve(entry) for entry in anchors() if entry.rows and _is_curve(entry))


def decode_curve(gpu: str, tp: int | None) -> DecodeCurve | None:
    """The curve of this GPU at this tensor-parallel size."""
    return next((c for c in decode_curves() if c.gpu == gpu and c.tp == tp), None)


def _is_curve(entry: Anchor) -> bool:
    return (
        entry.path == "specialized"
        and entry.num_speculative_tokens == 0
        and entry.unit == "decode_tok_s"
        and all(row.speedup and row.concurrency for row in entry.rows)
    )


def _curve(entry: Anchor) -> DecodeCurve:
    rows = entry.rows
    return DecodeCurve(
        gpu=entry.gpu or "",
        tp=entry.tensor_parallel_size or 0,
        batches=tuple(row.concurrency or 0 for row in rows),
        tok_s=tuple(row.value for row in rows),
        speedup=tuple(row.speedup or 1.0 for row in rows),
        source=entry.cited,
    )


def _missing(name: str) -> Anchor:
    raise KeyError(name)


@cache
def _file() -> dict[str, Any]:
    import yaml

    text = (resources.files("k3ctl.facts") / "published.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))
