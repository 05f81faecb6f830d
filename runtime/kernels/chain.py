"""The attention half of a KDA layer on one rank, as a chain of our kernels: for tests and benchmarks across operators.

attn_res -> in-projection -> kda_decode -> o_proj, each launched with the promises that hold at its place: every
projection reads only weights early and triggers after its wait; attn_res and kda_decode read settled state, and are
followed by a projection.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.kernels.attn_res.dispatch import AttnRes
from runtime.kernels.attn_res.spec import AttnResSpec
from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.kda.dispatch import KdaDecode
from runtime.kernels.kda.spec import KdaDecodeSpec
from runtime.kernels.skinny_gemm.dispatch import SkinnyGemm
from runtime.kernels.skinny_gemm.spec import SkinnyGemmSpec

HIDDEN, HEAD, BLOCKS, EPS = 7168, 128, 8, 1e-5
IN_PROJECTION_ROWS = {12: 6288, 6: 3216}  # local heads -> rows of the packed projection, padded


@dataclass
class Buffers:
    """Activations and caches of one layer and step."""

    prefix: Tensor
    delta: Tensor
    blocks: Tensor
    x: Tensor
    projected: Tensor
    conv_state: Tensor
    state: Tensor
    slots: Tensor
    y: Tensor
    attn_out: Tensor

    @classmethod
    def random(cls, heads: int, requests: int) -> "Buffers":
        """Random inputs and NaN elsewhere."""
        width, pages = heads * HEAD, requests + 1

        def half(*shape, value=None):
            new = (
                torch.randn(*shape, device="cuda")
                if value is None
                else torch.full(shape, value, device="cuda")
            )
            return new.bfloat16()

        nan = float("nan")
        return cls(
            prefix=half(requests, HIDDEN),
            delta=half(requests, HIDDEN),
            blocks=half(requests, BLOCKS, HIDDEN),
            x=half(requests, HIDDEN, value=nan),
            projected=half(requests, IN_PROJECTION_ROWS[heads], value=nan),
            conv_state=half(pages, 3, 3 * width),
            state=torch.randn(pages, heads, HEAD, HEAD, device="cuda"),
            slots=(torch.randperm(requests, device="cuda") + 1).int().view(-1, 1),
            y=half(requests, width, value=nan),
            attn_out=half(requests, HIDDEN, value=nan),
        )


class AttentionHalf:
    """The four operators of one layer with random weights; `overlapped` says whether promises are made."""

    def __init__(self, heads: int, *, overlapped: bool = True) -> None:
        width, promise = heads * HEAD, Overlap(overlapped, overlapped)

        def half(*shape, scale=1.0):
            return (torch.randn(*shape, device="cuda") * scale).bfloat16()

        norms = half(HIDDEN, scale=0.1) + 1, half(HIDDEN, scale=0.05), half(HIDDEN, scale=0.1) + 1
        site = AttnResSpec(HIDDEN, BLOCKS, None, True, True, EPS, EPS, overlap=promise)
        self.attn_res = AttnRes(site, *norms)
        rows = IN_PROJECTION_ROWS[heads]
        self.in_projection = SkinnyGemm(SkinnyGemmSpec(rows, HIDDEN), half(rows, HIDDEN, scale=HIDDEN**-0.5))
        self.kda = KdaDecode(
            KdaDecodeSpec(heads, overlap=promise),
            half(width, HEAD, scale=1 / 11),
            torch.randn(3 * width, 4, device="cuda") * 0.4,
            torch.randn(heads, device="cuda") * 0.3,
            torch.randn(heads, HEAD, device="cuda") * 0.3,
            torch.rand(HEAD, device="cuda") + 0.5,
        )
        self.o_proj = SkinnyGemm(SkinnyGemmSpec(HIDDEN, width), half(HIDDEN, width, scale=width**-0.5))

    def __call__(self, b: Buffers, skip: str = "") -> None:
        """Run the chain; `skip` leaves one operator out, to see what it costs in place."""
        if skip != "attn_res":
            self.attn_res(b.prefix, b.delta, b.blocks, b.x)
        if skip != "in_projection":
            self.in_projection(b.x, b.projected)
        if skip != "kda_decode":
            self.kda(b.projected, b.conv_state, b.state, b.slots, b.y)
        if skip != "o_proj":
            self.o_proj(b.y, b.attn_out)
