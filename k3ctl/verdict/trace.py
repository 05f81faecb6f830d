"""What a profiler trace proves: which path its decode steps took, how many kernels a layer has, how long it takes.

The specialized path of vLLM 0.33.0 is recognised by sentinels that never occur in a standard step: one ``KdaSplit`` per
KDA layer (69) and one ``MlaValue`` or ``DcpValue`` per MLA layer (24) in every step, in the order of the layers. A
sentinel alone is not a layer: each must be followed by the rest of its own (o-projection, experts or dense MLP, the
next mixture) before the next one. Standard decode steps are counted beside them, by the KDA kernels that only they
have. Class names, counts and order: vLLM 0.33.0's source, checked there against the published count of 13 kernels per
KDA+MoE layer. Not yet run on a Blackwell trace; standard steps were seen on an H200. The runtime's own path on Hopper
is ``own_path``'s.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from k3ctl.facts import published as facts
from k3ctl.facts.k3 import K3
from k3ctl.verdict.kernels import EXPERTS, KDA, O_PROJECTION, Kernel, classify, has, is_class
from k3ctl.verdict.layers import OUTSIDE_SHARE, PROVED_SHARE, LayerKind, layers, outside
from k3ctl.verdict.own_path import PREFILL, SENTINELS, OwnReport, own_path

LAYERS, MLA_LAYERS, KDA_LAYERS = K3.layers, frozenset(K3.mla_layers), K3.kda_layers
STEP = "".join("M" if i in MLA_LAYERS else "K" for i in range(LAYERS))
"""Sentinels of one specialized step of Kimi K3 in time order: 69 times K, 24 times M. Only its end reads ``MM``."""

KDA_SENTINEL = ("KdaSplit",)
MLA_SENTINELS = ("MlaValue", "DcpValue")
MIXTURE = ("ClusterAttnRes",)
DENSE = ("DenseSitu",)


@dataclass(frozen=True)
class TraceReport:
    """Summary of one rank's trace.

    steps: whole specialized steps; standard_steps: standard decode steps, at least; consistent: all sentinels belong to
    whole steps, or to one that the window cut at its start or end; bare: sentinels without the rest of their layer;
    outside: share of the GPU's time, or of its kernels if that is more, that belongs to neither a specialized step nor
    to what lies between two steps; kernels_per_layer and us_per_layer: over the specialized steps, each from its first
    kernel to its last; layers: the layers of standard steps.
    """

    kernels: int
    steps: int
    standard_steps: int
    consistent: bool
    bare: int
    outside: float
    kda_sentinels: int
    mla_sentinels: int
    kernels_per_layer: float | None
    us_per_layer: float | None
    layers: tuple[LayerKind, ...]
    by_part: Mapping[str, tuple[int, float]]
    by_stream: Mapping[str, int]
    own: OwnReport = field(default_factory=OwnReport)
    """KDA layers that ran the runtime's own path on Hopper."""

    @property
    def share(self) -> float:
        """Share of the decode steps that were specialized."""
        return self.steps / (self.steps + self.standard_steps) if self.steps else 0.0

    @property
    def cut(self) -> bool:
        """The window holds a part of a specialized step only."""
        return self.consistent and not self.steps and self.kda_sentinels + self.mla_sentinels > 0

    @property
    def proves(self) -> bool:
        """Whether the trace alone proves that decode steps are specialized."""
        whole = self.consistent and self.steps > 0 and not self.bare
        return whole and self.share >= PROVED_SHARE and self.outside <= OUTSIDE_SHARE


def summarize(kernels: Sequence[Kernel]) -> TraceReport:
    """Count, classify and time the kernels of one rank (in time order)."""
    sentinels = [(i, letter) for i, kernel in enumerate(kernels) if (letter := _sentinel(kernel.name))]
    first, steps, consistent = _whole_steps("".join(letter for _, letter in sentinels))
    places = [i for i, _ in sentinels]
    whole = [_whole_layer(kernels, places, n, (n - first) % LAYERS) for n in range(len(places))]
    if steps and first + steps * LAYERS == len(places) and not whole[-1]:
        steps -= 1  # the window ends inside its last layer
    spans = _spans(kernels, places[first : first + steps * LAYERS]) if consistent else []
    bare = whole[:-1].count(False) if consistent else 0  # the last one may be cut
    inside = [kernels[start : end + 1] for start, end in spans]
    wall = sum(max(k.start_us + k.duration_us for k in step) - step[0].start_us for step in inside)
    counted = steps * LAYERS if inside else 0
    return TraceReport(
        kernels=len(kernels),
        steps=steps if consistent else 0,
        standard_steps=_standard_steps(kernels),
        consistent=consistent,
        bare=bare,
        outside=_outside(kernels, spans, sentinels),
        kda_sentinels=sum(letter == "K" for _, letter in sentinels),
        mla_sentinels=sum(letter == "M" for _, letter in sentinels),
        kernels_per_layer=sum(map(len, inside)) / counted if counted else None,
        us_per_layer=wall / counted if counted else None,
        layers=layers(kernels),
        by_part=_by_part(kernels),
        by_stream=Counter(k.stream for k in kernels),
        own=own_path(kernels),
    )


def verdict(reports: Sequence[TraceReport]) -> str:
    """``proved``, ``not engaged`` or ``unknown``, for the traces of all ranks: each must prove the same by itself."""
    if not reports or any(not report.kernels for report in reports):
        return "unknown"
    if all(report.own.proves for report in reports):
        return "proved"
    if any(report.own.bare for report in reports):
        return "unknown"
    if any(report.own.own for report in reports) and not any(report.own.refuted for report in reports):
        return "unknown"
    if all(report.proves for report in reports):
        return "proved" if len({report.steps for report in reports}) == 1 else "unknown"
    if any(report.bare or report.cut for report in reports):
        return "unknown"
    standard = (r.share < PROVED_SHARE for r in reports if r.standard_steps)
    return "not engaged" if any(standard) else "unknown"


def statement(reports: Sequence[TraceReport]) -> str:
    """One sentence for people, with the published figures beside the measured ones."""
    grade = verdict(reports)
    return f"{grade} — {_why(grade, reports)}"


def published() -> dict[str, tuple[float, float]]:
    """Standard and specialized KDA + MoE layer, TP16, batch 8, GB300: kernels, and µs."""
    layer, paths = facts.layer(), ("standard", "specialized")
    kernels, us = (tuple(found[path] for path in paths) for found in (layer.kernels, layer.us))
    return {"kernels_per_layer": (kernels[0], kernels[1]), "us_per_layer": (us[0], us[1])}


def _why(grade: str, reports: Sequence[TraceReport]) -> str:
    (stock, fast), (stock_us, fast_us) = published().values()
    if any(report.own.own or report.own.bare for report in reports):
        return _own_why(reports)
    if grade == "unknown":
        return _doubt(reports)
    if grade == "proved":
        report = reports[0]
        beside = f" beside {report.standard_steps} standard ones" if report.standard_steps else ""
        return (
            f"{report.steps} specialized steps{beside} ({_counted(report)}); "
            f"{report.kernels_per_layer:.1f} kernels a layer (published {stock:.0f} → {fast:.0f}), "
            f"{report.us_per_layer:.1f} µs a layer (published {stock_us:.0f} → {fast_us:.0f}, TP16, batch 8, GB300)"
        )
    report = min((r for r in reports if r.standard_steps), key=lambda r: r.share)
    if report.steps:
        return f"{report.steps} specialized decode steps beside {report.standard_steps} standard ones"
    text = _counted(report)
    if report.kda_sentinels or report.mla_sentinels:
        return f"{text}: not in the order of whole steps (69 and 24 per step)"
    if (moe := next((kind for kind in report.layers if kind.name == "KDA + MoE"), None)) is not None:
        text += (
            f"; a standard KDA + MoE layer has {moe.kernels:.0f} kernels and takes {moe.us:.1f} µs "
            f"(published {stock:.0f} → {fast:.0f} kernels, {stock_us:.0f} → {fast_us:.0f} µs, TP16, batch 8, GB300)"
        )
    return text


def _own_why(reports: Sequence[TraceReport]) -> str:
    worst = min((report.own for report in reports), key=lambda own: own.share)
    if worst.bare:
        return f"{worst.bare} of our KDA kernels without the rest of their layer around them"
    text = f"{worst.own} of {worst.own + worst.standard} KDA layers of the decode steps ran our kernel"
    if worst.unknown:
        text += f", beside {worst.unknown} layers of unknown kernels"
    if (most := max(report.own.outside for report in reports)) > OUTSIDE_SHARE and not worst.refuted:
        text += (
            f"; {most:.0%} of the GPU's time or kernels lies outside of them: take a window of decode steps"
        )
    report = next(report for report in reports if report.own is worst)
    if (moe := next((kind for kind in report.layers if kind.name == "KDA + MoE"), None)) is not None:
        text += f"; a KDA + MoE layer has {moe.kernels:.0f} kernels and takes {moe.us:.1f} µs"
    return text


def _doubt(reports: Sequence[TraceReport]) -> str:
    if empty := sum(not report.kernels for report in reports):
        if empty == len(reports):
            return "the trace holds no GPU kernels: it proves nothing about a GPU's decode path"
        return f"{empty} of {len(reports)} ranks hold no GPU kernels"
    if bare := max((report.bare for report in reports), default=0):
        return f"{bare} sentinel kernels without the rest of their layer around them"
    if any(report.cut for report in reports):
        return "the window holds no whole step: take a longer one"
    if strange := next((report for report in reports if not report.steps), None):
        text = _counted(strange)
        if strange.kda_sentinels or strange.mla_sentinels:
            return f"{text}: not in the order of whole steps (69 and 24 per step)"
        return f"{text}, and no decode step that is known: was the server decoding?"
    outside = max((report.outside for report in reports), default=0.0)
    if outside > OUTSIDE_SHARE:
        return f"{outside:.0%} of the GPU's time lies outside of the specialized steps: take a window of decode steps"
    return f"ranks differ: {', '.join(str(r.steps) for r in reports)} specialized steps"


def _counted(report: TraceReport) -> str:
    return f"{report.kda_sentinels} KdaSplit, {report.mla_sentinels} MlaValue/DcpValue in {report.kernels} kernels"


def as_data(report: TraceReport) -> Mapping[str, Any]:
    """The report for scripts."""
    return {
        "kernels": report.kernels,
        "specialized_steps": report.steps,
        "standard_steps": report.standard_steps,
        "bare_sentinels": report.bare,
        "outside_share": report.outside,
        "kda_sentinels": report.kda_sentinels,
        "mla_sentinels": report.mla_sentinels,
        "own_kda_layers": report.own.own,
        "own_bare": report.own.bare,
        "own_unknown_layers": report.own.unknown,
        "own_outside_share": report.own.outside,
        "kernels_per_layer": report.kernels_per_layer,
        "us_per_layer": report.us_per_layer,
        "standard_layers": [asdict(kind) for kind in report.layers],
        "by_part": {part: {"kernels": n, "us": us} for part, (n, us) in report.by_part.items()},
        "by_stream": dict(report.by_stream),
    }


def _sentinel(name: str) -> str:
    return "K" if is_class(name, KDA_SENTINEL) else "M" if is_class(name, MLA_SENTINELS) else ""


def _whole_steps(letters: str) -> tuple[int, int, bool]:
    """(position of the first whole step, whole steps, whether the rest is the end of one and the start of another).

    Without a whole step: whether it is a piece of one, or of two in a row.
    """
    first = letters.find(STEP)
    if first < 0:
        return 0, 0, letters in STEP * 2
    steps = 0
    while letters.startswith(STEP, first + steps * LAYERS):
        steps += 1
    before, after = letters[:first], letters[first + steps * LAYERS :]
    return first, steps, STEP.endswith(before) and STEP.startswith(after)


def _spans(kernels: Sequence[Kernel], sentinels: Sequence[int]) -> list[tuple[int, int]]:
    """(first, last) kernel of each whole step: from the mixture before its first sentinel to the one after its last."""
    mixtures = [i for i, kernel in enumerate(kernels) if has(kernel.name, MIXTURE)]
    spans: list[tuple[int, int]] = []
    for start in range(0, len(sentinels), LAYERS):
        first, last = sentinels[start], sentinels[start + LAYERS - 1]
        following = sentinels[start + LAYERS] if start + LAYERS < len(sentinels) else len(kernels)
        floor = spans[-1][1] if spans else -1
        spans.append(
            (
                max((i for i in mixtures if floor < i < first), default=first),
                min((i for i in mixtures if last < i < following), default=last),
            )
        )
    return spans


def _whole_layer(kernels: Sequence[Kernel], sentinels: Sequence[int], n: int, layer: int) -> bool:
    """Whether what follows sentinel ``n``, before the next one, is the rest of its layer."""
    end = sentinels[n + 1] if n + 1 < len(sentinels) else len(kernels)
    rest = kernels[sentinels[n] + 1 : end]
    foreign = next((i for i, kernel in enumerate(rest) if _standard_kda(kernel)), None)
    if foreign is not None and layer < LAYERS - 1:
        return False
    rest = rest[:foreign]  # after the last layer another step may follow
    parts = {classify(kernel.name) for kernel in rest}
    mlp = EXPERTS in parts or (layer == 0 and any(has(kernel.name, DENSE) for kernel in rest))
    return mlp and O_PROJECTION in parts and any(has(kernel.name, MIXTURE) for kernel in rest)


def _standard_steps(kernels: Sequence[Kernel]) -> int:
    """Standard decode steps, by the kernels of their KDA layers that no prefill and no specialized step has."""
    return math.ceil(sum(map(_standard_kda, kernels)) / KDA_LAYERS)


def _standard_kda(kernel: Kernel) -> bool:
    return classify(kernel.name) == KDA and not has(kernel.name, (*KDA_SENTINEL, *SENTINELS, *PREFILL))


def _outside(
    kernels: Sequence[Kernel], spans: Sequence[tuple[int, int]], sentinels: Sequence[tuple[int, str]]
) -> float:
    """Share of GPU time outside of specialized steps, those that the window cut included."""
    if not spans:
        return 1.0
    covered = [*spans]
    covered += [(sentinels[0][0], spans[0][0])] if sentinels[0][0] < spans[0][0] else []
    covered += [(spans[-1][1], sentinels[-1][0])] if sentinels[-1][0] > spans[-1][1] else []
    within = {i for start, end in covered for i in range(start, end + 1)}
    return outside(kernels, within)


def _by_part(kernels: Sequence[Kernel]) -> Mapping[str, tuple[int, float]]:
    parts: dict[str, tuple[int, float]] = {}
    for kernel in kernels:
        part = classify(kernel.name)
        count, total = parts.get(part, (0, 0.0))
        parts[part] = (count + 1, total + kernel.duration_us)
    return dict(sorted(parts.items(), key=lambda item: -item[1][1]))
