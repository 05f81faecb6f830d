"""What a trace proves of the runtime's own decode path on Hopper (``decode.backend: hopper``).

Its KDA layers run one kernel that nothing else has: ``KdaDecodeKernel`` or, at large batches, ``KdaStreamKernel``. A
sentinel counts only inside a whole layer: between the layer's two mixtures, and with experts or a dense MLP before the
next layer's. Any number of layers may be served (a pipeline stage has a part of them), so layers are counted, not
steps. Names, places and counts were seen on an H200 (46 layers and 8, batches 1, 8 and 64).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from k3ctl.verdict.kernels import KDA, Kernel, classify, has
from k3ctl.verdict.layers import MIXTURE

SENTINELS = ("KdaDecodeKernel", "KdaStreamKernel")
PREFILL = ("chunk_kda", "flash_kda", "FlashKDA", "causal_conv1d", "layer_norm_gated")
"""KDA kernels that prefills run, or prefills too: they tell no decode step."""
PROVED_SHARE = 0.95
"""Share of the decode steps' KDA layers that must be ours."""


@dataclass(frozen=True)
class OwnReport:
    """KDA layers of decode steps in one rank's trace: ``own`` with our kernel, ``standard`` with vLLM's.

    bare: sentinels outside of a whole layer, apart from one that the window may have cut at each end.
    """

    own: int = 0
    standard: int = 0
    bare: int = 0

    @property
    def share(self) -> float:
        """Share of the KDA layers that ran our kernel."""
        return self.own / (self.own + self.standard) if self.own else 0.0

    @property
    def proves(self) -> bool:
        """Whether the trace alone proves that decode steps take our path."""
        return self.own > 0 and not self.bare and self.share >= PROVED_SHARE


def own_path(kernels: Sequence[Kernel]) -> OwnReport:
    """Count the KDA layers of one rank's trace, its kernels in time order."""
    sentinels = [i for i, kernel in enumerate(kernels) if has(kernel.name, SENTINELS)]
    if not sentinels:
        return OwnReport(standard=_standard(kernels))
    marks = [i for i, kernel in enumerate(kernels) if has(kernel.name, MIXTURE)]
    whole = {
        i
        for first, middle, last in zip(marks, marks[1:], marks[2:], strict=False)
        for i in sentinels
        if first < i < middle and _alone(kernels[first:middle]) and last - middle > 1
    }
    ends = {sentinels[0], sentinels[-1]}
    bare = [i for i in sentinels if i not in whole and i not in ends]
    return OwnReport(len(whole), _standard(kernels), len(bare))


def _alone(attention: Sequence[Kernel]) -> bool:
    """Whether the attention half of a layer has one KDA kernel, with projections around it."""
    cores = [kernel for kernel in attention if classify(kernel.name) == KDA]
    return len(cores) == 1 and len(attention) >= 3


def _standard(kernels: Sequence[Kernel]) -> int:
    """KDA kernels that only vLLM's own decode steps have, one in every layer."""
    return sum(classify(k.name) == KDA and not has(k.name, (*SENTINELS, *PREFILL)) for k in kernels)
