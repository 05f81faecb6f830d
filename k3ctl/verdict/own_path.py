"""What a trace proves of the runtime's own decode path on Hopper (``decode.backend: hopper``).

Its KDA layers run one kernel that nothing else has: ``KdaDecodeKernel`` or, at large batches, ``KdaStreamKernel``. A
sentinel counts only inside a whole layer: between the layer's two mixtures, with projections before and after it, and
with experts or a dense MLP before the next layer's. Any number of layers may be served (a pipeline stage has a part of
them), so layers are counted, not steps. What the rest of the window ran must be known too, for kernels of unknown names
may be standard layers. Names, places and counts were seen on an H200 (46 layers and 8, batches 1, 8 and 64).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from k3ctl.verdict.kernels import EXPERTS, KDA, O_PROJECTION, Kernel, classify, has
from k3ctl.verdict.layers import ATTENTION, BESIDE, MIXTURE, OUTSIDE_SHARE, PROVED_SHARE, outside

SENTINELS = ("KdaDecodeKernel", "KdaStreamKernel")
PREFILL = ("chunk_kda", "flash_kda", "FlashKDA", "causal_conv1d", "layer_norm_gated")
"""KDA kernels that prefills run, or prefills too: they tell no decode step."""
PROJECTIONS = {"projections", O_PROJECTION}
MLP = {EXPERTS, "activation"}
OURS, CORE, REST, BETWEEN, UNKNOWN = "ours", "another attention", "MLP", "between steps", "unknown"
"""What the kernels from one mixture to the next are."""
MLA_IN_A_ROW = 2
"""K3's last two layers; every other MLA layer stands between KDA layers."""


@dataclass(frozen=True)
class OwnReport:
    """KDA layers of decode steps in one rank's trace: ``own`` with our kernel, ``standard`` with vLLM's.

    unknown: layers whose attention has no kernel that is known; bare: sentinels outside of a whole layer, apart from
    one that the window may have cut at each end; outside: share of the GPU's time, or of its kernels if that is more,
    outside of own KDA layers and of the MLA layers beside them.
    """

    own: int = 0
    standard: int = 0
    unknown: int = 0
    bare: int = 0
    outside: float = 1.0

    @property
    def layers(self) -> int:
        """Layers that decode steps may have run their KDA in."""
        return self.own + self.standard + self.unknown

    @property
    def share(self) -> float:
        """Share of these that ran our kernel."""
        return self.own / self.layers if self.own else 0.0

    @property
    def proves(self) -> bool:
        """Whether the trace alone proves that decode steps take our path."""
        known = not self.bare and self.outside <= OUTSIDE_SHARE
        return self.own > 0 and known and self.share >= PROVED_SHARE

    @property
    def refuted(self) -> bool:
        """Whether too many layers ran vLLM's kernels, whatever the unknown ones were."""
        return self.standard > (1 - PROVED_SHARE) * self.layers


def own_path(kernels: Sequence[Kernel]) -> OwnReport:
    """Count the KDA layers of one rank's trace, its kernels in time order."""
    sentinels = [i for i, kernel in enumerate(kernels) if has(kernel.name, SENTINELS)]
    if not sentinels:
        return OwnReport(standard=_standard(kernels))
    marks = [i for i, kernel in enumerate(kernels) if has(kernel.name, MIXTURE)]
    halves = [_half(kernels[start:end]) for start, end in pairwise(marks)]
    own = [i for i, (half, after) in enumerate(pairwise(halves)) if (half, after) == (OURS, REST)]
    whole = {i for n in own for i in range(marks[n], marks[n + 2])}
    beside = {i for n in _beside(own, halves) for i in range(marks[n], marks[n + 2])}
    cut = {sentinels[0], sentinels[-1]}
    return OwnReport(
        own=len(own),
        standard=_standard(kernels),
        unknown=sum(half == UNKNOWN and after in (REST, UNKNOWN) for half, after in pairwise(halves)),
        bare=sum(i not in whole and i not in cut for i in sentinels),
        outside=outside(kernels, whole | beside),
    )


def _half(kernels: Sequence[Kernel]) -> str:
    """What the kernels from one mixture to the next are, by the parts that are known."""
    parts = [classify(kernel.name) for kernel in kernels]
    if any(has(kernel.name, SENTINELS) for kernel in kernels):
        return OURS if _whole(parts) else CORE
    if ATTENTION.keys() & set(parts):
        return CORE
    if MLP & set(parts):
        return REST
    return BETWEEN if len(parts) == 1 or BESIDE & set(parts) else UNKNOWN


def _whole(parts: Sequence[str]) -> bool:
    """Whether the attention half of a layer has one core, with projections before and after it."""
    cores = [i for i, part in enumerate(parts) if part in ATTENTION]
    return (
        len(cores) == 1
        and bool(PROJECTIONS & set(parts[: cores[0]]))
        and bool(PROJECTIONS & set(parts[cores[0] :]))
    )


def _beside(own: Sequence[int], halves: Sequence[str]) -> set[int]:
    """Layers of other attention, by their first half, that stand directly before or after own KDA layers."""
    found: set[int] = set()
    for step in (2, -2):
        reached = set(own)
        for _ in range(MLA_IN_A_ROW):
            reached = {
                n + step
                for n in reached
                if 0 <= n + step < len(halves) - 1 and tuple(halves[n + step : n + step + 2]) == (CORE, REST)
            }
            found |= reached
    return found


def _standard(kernels: Sequence[Kernel]) -> int:
    """KDA kernels that only vLLM's own decode steps have, one in every layer."""
    return sum(classify(k.name) == KDA and not has(k.name, (*SENTINELS, *PREFILL)) for k in kernels)
