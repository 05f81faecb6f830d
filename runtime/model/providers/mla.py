"""The attend slot of an MLA layer from our kernels: in-projection, query, core, value, o_proj."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.mla.dispatch import MlaDecode, Workspace
from runtime.kernels.mla.shapes import ROW
from runtime.kernels.mla.spec import Context, MlaDecodeSpec
from runtime.kernels.skinny_gemm.dispatch import SkinnyGemm
from runtime.kernels.skinny_gemm.spec import SkinnyGemmSpec
from runtime.model.step import Buffers, Launch


@dataclass(frozen=True)
class MlaWeights:
    """One rank's weights of an MLA layer, N local heads; all BF16.

    in_proj [R+576+N·128,D]: rows q_a | kv_a | output gate. q_norm [R]. w_qb [N·192,R]. kv_norm [512]. w_uk and w_uv
    [N,128,512], the halves of kv_b. o_proj [D,N·128]. scale: of the scores. eps: of both norms.
    """

    in_proj: Tensor
    q_norm: Tensor
    w_qb: Tensor
    kv_norm: Tensor
    w_uk: Tensor
    w_uv: Tensor
    o_proj: Tensor
    scale: float
    eps: float

    def spec(self, query_len: int, overlap: Overlap) -> MlaDecodeSpec:
        """The call site of the operator between the projections."""
        heads, rank = self.w_uk.shape[0], self.q_norm.shape[0]
        return MlaDecodeSpec(heads, query_len, rank, self.scale, self.eps, overlap=overlap)


MLA_OPS = ("mla_query", "mla_absorb", "mla_core", "mla_value")


def launches(layer: int, starts_block: bool) -> tuple[Launch, ...]:
    """The six launches of the block on one rank; a collective after them is the caller's."""
    cache = frozenset({f"mla{layer}"})
    out = "prefix" if starts_block else "attention"

    def writes(op: str, what: str) -> Launch:
        return Launch(op, layer, writes=frozenset({what}))

    return (
        writes("in_projection", "projected"),
        writes("mla_query", "mla_q"),
        writes("mla_absorb", "mla_absorbed"),
        Launch("mla_core", layer, state=cache, writes=cache | {"mla_parts"}),
        writes("mla_value", "y"),
        writes("o_proj", out),
    )


class MlaBlock:
    """The block of one layer.

    overlap: the promises of its core, whose state is the cache. query_len: tokens per request (1, or 1 + drafts with
    speculation). all_reduce: sums over the tensor-parallel group, None on a single rank. provider: of the core; "cute"
    unless said otherwise, because this slot is served only where it is named.
    """

    def __init__(
        self,
        weights: MlaWeights,
        overlap: Overlap,
        query_len: int = 1,
        all_reduce: Callable[[Tensor], Tensor] | None = None,
        provider: str = "cute",
    ) -> None:
        w = weights
        self.in_projection = SkinnyGemm(SkinnyGemmSpec(*w.in_proj.shape), w.in_proj)
        self.o_proj = SkinnyGemm(SkinnyGemmSpec(*w.o_proj.shape), w.o_proj)
        spec = w.spec(query_len, overlap)
        self.core = MlaDecode(spec, w.q_norm, w.w_qb, w.kv_norm, w.w_uk, w.w_uv, provider=provider)
        self.choice = self.core.choice
        self.all_reduce, self.columns = all_reduce, w.in_proj.shape[0]

    def workspace(self, requests: int) -> Workspace:
        """Buffers for steps of at most ``requests`` requests, for all layers of a step."""
        return self.core.buffers(requests)

    def __call__(
        self, x: Tensor, context: Context, workspace: Workspace, buffers: Buffers, out: Tensor
    ) -> Tensor:
        """x [T,D] → [T,D], in ``out`` unless the group's sum makes a new tensor. This step's rows go to the pages."""
        out = self.local(x, context, workspace, buffers, out)
        return out if self.all_reduce is None else self.all_reduce(out)

    def local(
        self, x: Tensor, context: Context, workspace: Workspace, buffers: Buffers, out: Tensor
    ) -> Tensor:
        """This rank's part of the sum, in ``out``."""
        spec = self.core.spec
        projected = self.in_projection(x, buffers.projected[:, : self.columns])
        y = buffers.y[:, : self.columns - spec.q_rank - ROW]
        q_a, kv_a, gate = projected.split([spec.q_rank, ROW, y.shape[1]], dim=1)
        self.core(q_a, kv_a, gate, context, workspace, y)
        return self.o_proj(y, out)
