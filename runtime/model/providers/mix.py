"""The mix slot from our kernel: one call site of Attention Residuals, in place on the step's buffers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from runtime.kernels.attn_res.dispatch import AttnRes
from runtime.kernels.attn_res.spec import AttnResSpec
from runtime.kernels.common.launch.overlap import Overlap
from runtime.model.step import Launch, Residual


@dataclass(frozen=True)
class MixSite:
    """One place in the model where sources are mixed.

    layer: 0-based, None for the last mixture. num_blocks: stored blocks among the sources. write: the block that it
    stores, or None. has_delta: whether a delta is pending there. score_norm, score_vec [D], out_norm [D] or None: BF16.
    """

    layer: int | None
    num_blocks: int
    write: int | None
    has_delta: bool
    score_norm: Tensor
    score_vec: Tensor
    out_norm: Tensor | None
    eps: float
    out_eps: float

    @property
    def launch(self) -> Launch:
        """What it reads and writes. It rewrites the prefix when it adds a delta."""
        writes = (
            {"x"}
            | ({"prefix"} if self.has_delta else set())
            | ({"blocks"} if self.write is not None else set())
        )
        return Launch("attn_res", self.layer, state=frozenset({"prefix", "blocks"}), writes=frozenset(writes))


class MixKernel:
    """``AttnRes`` at one site; ``provider`` as there."""

    def __init__(self, site: MixSite, overlap: Overlap, provider: str = "auto") -> None:
        self.site = site
        spec = self.spec(site, overlap)
        self.operator = AttnRes(spec, site.score_norm, site.score_vec, site.out_norm, provider=provider)
        self.choice = self.operator.choice

    @staticmethod
    def spec(site: MixSite, overlap: Overlap) -> AttnResSpec:
        """The call site as the operator sees it."""
        return AttnResSpec(
            site.score_norm.shape[0],
            site.num_blocks,
            site.write,
            site.has_delta,
            site.out_norm is not None,
            site.eps,
            site.out_eps,
            overlap=overlap,
        )

    def __call__(self, residual: Residual, out: Tensor) -> tuple[Tensor, Residual]:
        """Mix into ``out`` [T,D]; the prefix and the blocks of ``residual`` are updated in place."""
        self.operator(residual.prefix, residual.delta, residual.blocks, out)
        return out, Residual(residual.prefix, None, residual.blocks)
