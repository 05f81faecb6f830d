"""Bind routing to a call site: choose an implementation once, then call it."""

import torch
from torch import Tensor

from runtime.kernels.common.launch.device import H200, Device, device_of, supports_pdl
from runtime.kernels.common.launch.dispatch import AUTO, Choice, cute_or_triton, record
from runtime.kernels.common.launch.routing import Routing, empty_routing
from runtime.kernels.moe_route.spec import MAX_TOKENS, MoeRouteSpec, check, check_bias, unsupported

MEASURED_ON = frozenset({H200})


def choose_moe_route(spec: MoeRouteSpec, tokens: int, device: Device, requested: str = AUTO) -> Choice:
    """Choose among "cute" (one launch) and "triton" (the fallback, two launches) for `tokens` tokens."""
    reasons = unsupported(spec, device.arch)
    if tokens > MAX_TOKENS:
        reasons.append(f"{tokens} tokens, at most {MAX_TOKENS} in one launch")
    return cute_or_triton("moe_route", reasons, device, MEASURED_ON, requested)


class MoeRoute:
    """Routing with one correction bias [E] FP32.

    provider: "auto", "cute" or "triton". Raises ValueError if the bias does not fit `spec` or an explicit provider
    cannot run.
    """

    def __init__(self, spec: MoeRouteSpec, correction_bias: Tensor, *, provider: str = AUTO) -> None:
        check_bias(spec, correction_bias)
        self.spec, self.bias, self._provider = spec, correction_bias, provider
        self._device = device_of(correction_bias.device)
        self._choices = {1: choose_moe_route(spec, 1, self._device, provider)}

    def choice(self, tokens: int) -> Choice:
        """What a call with `tokens` tokens runs, and why; ValueError if an explicit provider cannot run it."""
        if tokens not in self._choices:
            self._choices[tokens] = choose_moe_route(self.spec, tokens, self._device, self._provider)
        return self._choices[tokens]

    def prepare(self, max_rows: int) -> None:
        """Compile every launch that calls with 1 … `max_rows` tokens make, so that none compiles during a capture."""
        for tokens in range(1, max_rows + 1):
            if self.choice(tokens).variant == "cute":
                from runtime.kernels.moe_route import cute_launch

                for masked in (False, True):
                    cute_launch.prepare(self.spec, tokens, masked, self._device.arch)

    def buffers(self, max_tokens: int) -> Routing:
        """Buffers for at most `max_tokens` tokens, to be given to every call; layers of a step may share them."""
        device, spec = self.bias.device, self.spec
        return empty_routing(max_tokens, spec.top_k, device, first=spec.first, local=spec.held)

    def __call__(self, logits: Tensor, routing: Routing, padding: Tensor | None = None) -> Routing:
        """Route logits [T, E] FP32 into the buffers and return them, narrowed to T tokens.

        padding: [T] bool, rows that choose nobody.
        """
        tokens, spec = logits.shape[0], self.spec
        routing = routing.of(tokens)
        check(spec, logits, routing, padding)
        choice = self.choice(max(tokens, 1))
        record(choice)
        if tokens == 0:
            routing.count.zero_()
            return routing
        mask = None if padding is None else padding.view(torch.uint8)
        if choice.variant == "cute":
            from runtime.kernels.moe_route import cute_launch

            cute_launch.run(spec, logits, self.bias, mask, routing)
        else:
            from runtime.kernels.moe_route import triton_kernel

            triton_kernel.run(spec, logits, self.bias, mask, routing, pdl=supports_pdl(self._device.arch))
        return routing
