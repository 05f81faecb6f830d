"""Time routing beside vLLM's kernels: `python -m runtime.kernels.moe_route.bench`."""

from collections.abc import Iterator

import torch

from runtime.kernels.common.workshop.bench import Case, main, peer
from runtime.kernels.common.workshop.humming_peer import humming_installed, stock_topk
from runtime.kernels.moe_route.dispatch import MoeRoute
from runtime.kernels.moe_route.spec import MoeRouteSpec

ALIGN = "vllm.model_executor.layers.fused_moe.moe_align_block_size"


def cases() -> Iterator[Case]:
    """896 experts, top 16; "vllm" is its top-k and its alignment to blocks of 8."""
    bias = torch.zeros(896, device="cuda")
    op = MoeRoute(MoeRouteSpec(), bias, provider="cute")
    for tokens in (1, 2, 4, 8, 16, 32, 64):
        logits = [torch.randn(tokens, 896, device="cuda") for _ in range(8)]
        routing = op.buffers(tokens)
        calls = {"k3": [lambda x=x, r=routing: op(x, r) for x in logits]}
        if humming_installed():
            calls["vllm top-k"] = [lambda x=x: stock_topk(x, bias, 16) for x in logits]
            calls["vllm"] = [lambda x=x: _stock(x, bias) for x in logits]
        yield Case({"tokens": tokens}, tokens * (896 + 32) * 4, calls)


def _stock(logits, bias):
    _, ids = stock_topk(logits, bias, 16)
    return peer(ALIGN, "moe_align_block_size")(ids, 8, 896, ignore_invalid_experts=True)


if __name__ == "__main__":
    main("moe_route", cases)
