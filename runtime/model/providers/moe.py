"""The feed-forward slot of a MoE layer from our kernels: router, shared expert, latent, routed experts, one stream.

    router -> shared gate and up, SiTU -> choose and group experts -> latent down -> shared down
           -> routed experts -> (sum over the group) -> norm -> latent up -> + shared

No branch runs on another stream: a join would cost the overlap of neighbouring kernels. The choice of experts stands
two kernels before the experts, so that their weights are requested while the shared expert still runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.common.launch.routing import Routing
from runtime.kernels.moe_experts.dispatch import MoeExperts, Workspace
from runtime.kernels.moe_experts.spec import MoeExpertsSpec
from runtime.kernels.moe_route.dispatch import MoeRoute
from runtime.kernels.moe_route.spec import MoeRouteSpec
from runtime.kernels.skinny_gemm.dispatch import SkinnyGemm
from runtime.kernels.skinny_gemm.spec import SkinnyGemmSpec
from runtime.model.step import Launch


@dataclass(frozen=True)
class MoeWeights:
    """One rank's weights of a LatentMoE block; BF16 unless said.

    router [E,D]; bias [E] FP32; shared_gate_up [2·S,D], gate rows first; shared_down [D,S]; down [R,D]; up [D,R];
    experts: (w13, w13_scale, w2, w2_scale) in Humming's layout. spec: of the experts. renormalize, scaling: of the
    router. norm: the latent's RMSNorm [T,R] → [T,R], an engine's own module.
    """

    router: Tensor
    bias: Tensor
    shared_gate_up: Tensor
    shared_down: Tensor
    down: Tensor
    up: Tensor
    experts: tuple[Tensor, Tensor, Tensor, Tensor]
    spec: MoeExpertsSpec
    renormalize: bool
    scaling: float
    norm: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class MoeBuffers:
    """What the block writes; layers share it. out [rows,D] is the block's result.

    logits [rows,E] FP32; hidden [rows,S], latent and mixed [rows,R], shared and out [rows,D]: BF16.
    """

    logits: Tensor
    hidden: Tensor
    latent: Tensor
    mixed: Tensor
    shared: Tensor
    out: Tensor
    routing: Routing
    workspace: Workspace

    def head(self, rows: int) -> MoeBuffers:
        """Views of the first ``rows`` rows; the routing and its workspace narrow themselves."""
        names = ("logits", "hidden", "latent", "mixed", "shared", "out")
        return replace(self, **{name: getattr(self, name)[:rows] for name in names})


def launches(layer: int) -> tuple[Launch, ...]:
    """The launches on one rank: the norm and the last addition are an engine's kernels."""
    groups = frozenset({"groups"})

    def writes(op: str, what: str) -> Launch:
        return Launch(op, layer, writes=frozenset({what}))

    return (
        writes("router", "logits"),
        writes("shared_gate_up", "hidden"),
        writes("moe_route", "groups"),
        writes("latent_down", "latent"),
        writes("shared_down", "shared"),
        Launch("moe_experts", layer, state=groups, writes=frozenset({"mixed"})),
        Launch("norm", layer, ours=False),
        writes("latent_up", "out"),
        Launch("add", layer, ours=False),
    )


class MoeBlock:
    """The block of one layer. all_reduce: sums over the tensor-parallel group, None on a single rank.

    provider: of routing and experts, as in their operators.
    """

    def __init__(
        self,
        weights: MoeWeights,
        overlap: Overlap,
        all_reduce: Callable[[Tensor], Tensor] | None = None,
        provider: str = "auto",
    ) -> None:
        w = weights
        self.weights, self.all_reduce = w, all_reduce
        # the experts' second kernel reads the groups before its wait: their first may not let it start early
        spec = _with(w.spec, Overlap(overlap.settled, False))
        self.router = _projection(w.router, "fp32")
        self.shared_gate_up = _projection(w.shared_gate_up, "situ")
        self.shared_down, self.down, self.up = (_projection(x) for x in (w.shared_down, w.down, w.up))
        route = MoeRouteSpec(spec.experts, spec.top_k, w.renormalize, w.scaling)
        self.route = MoeRoute(route, w.bias, provider=provider)
        self.experts = MoeExperts(spec, *w.experts, provider=provider)

    @property
    def choices(self) -> tuple[Any, ...]:
        """What was chosen for routing and experts."""
        return self.route.choice(1), self.experts.choice

    def buffers(self, rows: int) -> MoeBuffers:
        """Buffers for steps of at most ``rows`` rows, for all layers of a step."""
        w, device = self.weights, self.weights.router.device

        def make(columns: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
            return torch.zeros(rows, columns, dtype=dtype, device=device)

        hidden, latent = w.router.shape[1], w.down.shape[0]
        return MoeBuffers(
            make(w.router.shape[0], torch.float32),
            make(w.shared_down.shape[1]),
            make(latent),
            make(latent),
            make(hidden),
            make(hidden),
            self.route.buffers(rows),
            self.experts.buffers(rows),
        )

    def __call__(self, x: Tensor, buffers: MoeBuffers, padding: Tensor | None = None) -> Tensor:
        """x [T,D] → [T,D], summed over the group. padding [T] bool: rows that choose no expert."""
        mixed, shared = self.local(x, buffers, padding)
        if self.all_reduce is not None:
            mixed, shared = self.all_reduce(mixed), self.all_reduce(shared)
        return self.up(self.weights.norm(mixed), buffers.out).add_(shared)

    def local(self, x: Tensor, buffers: MoeBuffers, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """This rank's parts of the latent sum [T,R] and of the shared expert [T,D]."""
        b = buffers
        self.router(x, b.logits)
        self.shared_gate_up(x, b.hidden)
        routing = self.route(b.logits, b.routing, padding)
        self.down(x, b.latent)
        self.shared_down(b.hidden, b.shared)
        return self.experts(b.latent, routing, b.workspace, b.mixed), b.shared


def _projection(weight: Tensor, epilogue: str = "bf16") -> SkinnyGemm:
    rows, columns = weight.shape
    return SkinnyGemm(SkinnyGemmSpec(rows, columns, epilogue), weight)


def _with(spec: MoeExpertsSpec, overlap: Overlap) -> MoeExpertsSpec:
    return MoeExpertsSpec(
        spec.latent, spec.width, spec.experts, spec.top_k, spec.beta, spec.linear_beta, overlap
    )
