"""The attend slot of a KDA layer from our kernels: in-projection, fused decode or verify, o_proj."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.kda.dispatch import KdaDecode
from runtime.kernels.kda.spec import KdaDecodeSpec
from runtime.kernels.skinny_gemm.dispatch import SkinnyGemm
from runtime.kernels.skinny_gemm.spec import SkinnyGemmSpec
from runtime.model.step import Buffers, Launch


@dataclass(frozen=True)
class KdaWeights:
    """One rank's weights of a KDA layer, H local heads of 128.

    in_proj [P,D] BF16: rows q | k | v | output gate | f_a | beta | padding. f_b [H·128,128] BF16. conv [3·H·128,4],
    A_log [H], dt_bias [H,128], norm [128]: FP32. o_proj [D,H·128] BF16. lower_bound: of the log decay, negative.
    """

    in_proj: Tensor
    f_b: Tensor
    conv: Tensor
    A_log: Tensor
    dt_bias: Tensor
    norm: Tensor
    o_proj: Tensor
    lower_bound: float
    eps: float


@dataclass(frozen=True)
class KdaRows:
    """Where one step's requests keep their state, in the engine's pages (see ``KdaDecode``).

    conv_state [S,W,3·H·128] BF16 and state [S,H,128,128] FP32, of any page stride; slots [N,q] int32, below 1 for
    padding; accepted [N] int32 in 1…q for verify rows, None for decode.
    """

    conv_state: Tensor
    state: Tensor
    slots: Tensor
    accepted: Tensor | None


def launches(layer: int, starts_block: bool) -> tuple[Launch, ...]:
    """The three launches of the block on one rank; a collective after them is the caller's."""
    state = frozenset({f"kda{layer}"})
    out = "prefix" if starts_block else "attention"
    return (
        Launch("in_projection", layer, writes=frozenset({"projected"})),
        Launch("kda_decode", layer, state=state, writes=state | {"y"}),
        Launch("o_proj", layer, writes=frozenset({out})),
    )


class KdaBlock:
    """The block of one layer.

    overlap: the promises of its stateful kernel. query_len: tokens per request (1, or 1 + drafts with speculation).
    all_reduce: sums over the tensor-parallel group, None on a single rank.
    """

    def __init__(
        self,
        weights: KdaWeights,
        overlap: Overlap,
        query_len: int = 1,
        all_reduce: Callable[[Tensor], Tensor] | None = None,
        provider: str = "auto",
    ) -> None:
        w = weights
        self.in_projection = SkinnyGemm(SkinnyGemmSpec(*w.in_proj.shape), w.in_proj)
        self.o_proj = SkinnyGemm(SkinnyGemmSpec(*w.o_proj.shape), w.o_proj)
        spec = KdaDecodeSpec(w.A_log.shape[0], query_len, w.lower_bound, w.eps, overlap)
        self.core = KdaDecode(spec, w.f_b, w.conv, w.A_log, w.dt_bias, w.norm, provider=provider)
        self.choice = self.core.choice
        self.all_reduce = all_reduce

    def __call__(self, x: Tensor, rows: KdaRows, buffers: Buffers, out: Tensor) -> Tensor:
        """x [T,D] → [T,D], in ``out`` unless the group's sum makes a new tensor. States are updated in place."""
        out = self.local(x, rows, buffers, out)
        return out if self.all_reduce is None else self.all_reduce(out)

    def local(self, x: Tensor, rows: KdaRows, buffers: Buffers, out: Tensor) -> Tensor:
        """This rank's part of the sum, in ``out``."""
        columns, width = self.in_projection.spec.n, self.o_proj.spec.k  # an MLA layer may be wider
        projected, y = buffers.projected[:, :columns], buffers.y[:, :width]
        self.in_projection(x, projected)
        self.core(projected, rows.conv_state, rows.state, rows.slots, y, rows.accepted)
        return self.o_proj(y, out)
