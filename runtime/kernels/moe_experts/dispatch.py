"""Bind the routed experts to a call site: choose an implementation once, then call it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.kernels.common.launch.arguments import require
from runtime.kernels.common.launch.device import Device, device_of, supports_pdl
from runtime.kernels.common.launch.dispatch import AUTO, Choice, cute_or_triton, record, table_of
from runtime.kernels.common.launch.routing import Routing
from runtime.kernels.moe_experts.layout import pack_humming
from runtime.kernels.moe_experts.spec import MoeExpertsSpec, check, check_scales, check_weights, unsupported
from runtime.kernels.moe_experts.table import MEASURED_ON, TABLES, Launch, launch_of


@dataclass(frozen=True)
class Workspace:
    """What a call writes besides its result; layers of one stream may share it.

    hidden: [P, I] BF16, activations of every pair (token, slot). partial: [P, K] BF16, an expert's row for every pair.
    Both in an order of columns of the kernels' own. counters: [K/64] int32, zero between calls.
    """

    hidden: Tensor
    partial: Tensor
    counters: Tensor


def choose_moe_experts(
    spec: MoeExpertsSpec, scale_reasons: Sequence[str], device: Device, requested: str = AUTO
) -> Choice:
    """Choose among "cute" (the streaming kernels) and "triton" (the fallback).

    scale_reasons: see `spec.check_scales`.
    """
    reasons = [*unsupported(spec, device.arch), *scale_reasons]
    return cute_or_triton("moe_experts", reasons, device, MEASURED_ON, requested)


class MoeExperts:
    """The experts of one layer on one rank, in Humming's layout (`spec.check_weights`), read in place.

    provider: "auto", "cute" or "triton". Raises ValueError, with all reasons, if the weights are not in that layout
    or an explicit provider cannot run.
    """

    def __init__(
        self,
        spec: MoeExpertsSpec,
        w13: Tensor,
        w13_scale: Tensor,
        w2: Tensor,
        w2_scale: Tensor,
        *,
        provider: str = AUTO,
    ) -> None:
        check_weights(spec, w13, w13_scale, w2, w2_scale)
        self.spec = spec
        self._device = device_of(w13.device)
        reasons = check_scales(w13_scale, w2_scale)
        self.choice = choose_moe_experts(spec, reasons, self._device, provider)
        self.w13 = (w13, w13_scale.view(torch.int32))
        self.w2 = (w2, w2_scale.view(torch.int32))

    @classmethod
    def from_checkpoint(cls, spec: MoeExpertsSpec, w13, w2, *, provider: str = AUTO) -> "MoeExperts":
        """Experts with a copy of their own, from (codes, scales) of w13 and w2 in the checkpoint's format.

        For widths that vLLM pads, as 192 at TP16. Shapes as in `reference.moe_experts`.
        """
        return cls(spec, *pack_humming(*w13), *pack_humming(*w2), provider=provider)

    def launch(self, tokens: int) -> Launch:
        """How the streaming kernels are launched for a number of tokens."""
        return launch_of(table_of(TABLES, self._device), self.spec.width, tokens)

    def prepare(self, max_rows: int) -> None:
        """Compile every launch that calls with 1 … `max_rows` tokens make, so that none compiles during a capture."""
        if self.choice.variant != "cute":
            return
        from runtime.kernels.moe_experts import cute_launch

        for launch in {self.launch(tokens) for tokens in range(1, max_rows + 1)}:
            cute_launch.compiled_gate_up(self.spec, launch.gate_up, self._device.arch)
            cute_launch.compiled_down(self.spec, launch.down, self._device.arch)

    def buffers(self, max_tokens: int) -> Workspace:
        """Buffers for at most `max_tokens` tokens, to be given to every call."""
        spec, device, pairs = self.spec, self.w13[0].device, max_tokens * self.spec.top_k
        return Workspace(
            torch.zeros(pairs, spec.width, dtype=torch.bfloat16, device=device),
            torch.zeros(pairs, spec.latent, dtype=torch.bfloat16, device=device),
            torch.zeros(spec.latent // 64, dtype=torch.int32, device=device),
        )

    def __call__(
        self, x: Tensor, routing: Routing, workspace: Workspace, out: Tensor, *, launch: Launch | None = None
    ) -> Tensor:
        """Write the weighted sum of each token's experts to `out` [T, K] and return it; x: [T, K].

        A token without an expert here gets zeros. launch: another shape than the table's, for benches.
        """
        spec, tokens = self.spec, x.shape[0]
        routing = routing.of(tokens)
        check(spec, x, routing, out)
        pairs = tokens * spec.top_k
        require(
            workspace.hidden.shape[0] >= pairs, "workspace", f"for {pairs} pairs", workspace.hidden.shape[0]
        )
        record(self.choice)
        if tokens == 0:
            return out
        if self.choice.variant == "triton":
            from runtime.kernels.moe_experts import triton_kernel

            pdl = supports_pdl(self._device.arch)
            triton_kernel.run(spec, x, self.w13, self.w2, routing, workspace, out, pdl=pdl)
            return out
        from runtime.kernels.moe_experts import cute_launch

        launch = launch or self.launch(tokens)
        hidden, partial, counters = workspace.hidden, workspace.partial, workspace.counters
        cute_launch.run_gate_up(spec, x, self.w13, routing, hidden, self.w2, launch.gate_up)
        cute_launch.run_down(spec, hidden, self.w2, routing, partial, counters, out, launch.down)
        return out
