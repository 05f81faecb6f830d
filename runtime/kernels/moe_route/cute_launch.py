"""Compile and run the routing kernel."""

from functools import cache

import torch
from cutlass import Int32

from runtime.kernels.common.launch.cute_compile import compile_image, compile_kernel, symbol, tensor
from runtime.kernels.common.launch.device import arch_of
from runtime.kernels.common.workshop.audit import Role
from runtime.kernels.common.workshop.builds import Build
from runtime.kernels.moe_route.cute_kernel import CTA_TOKENS, GROUP_TOKENS, MoeRouteCluster


def operands(experts: int, top_k: int):
    """Stand-ins for the kernel's arguments, in order; see `spec` and `Routing` for the meaning."""
    tokens, groups, i32 = symbol(), symbol(), torch.int32
    return (
        tensor((tokens, experts), (symbol(), 1), torch.float32, align=4),
        tensor((experts,), (1,), torch.float32, align=4),
        tensor((symbol(),), (1,), torch.uint8, align=1),
        tensor((tokens, top_k), (top_k, 1), torch.float32, align=4),
        tensor((tokens, top_k), (top_k, 1), i32, align=4),
        tensor((groups,), (1,), i32, align=4),
        tensor((groups, GROUP_TOKENS), (GROUP_TOKENS, 1), i32, align=4),
        tensor((1,), (1,), i32, align=4),
        Int32(0),
        Int32(1),
    )


def cluster_of(tokens: int) -> int:
    """CTAs that share the tokens: a power of two."""
    return 1 << (-(-tokens // CTA_TOKENS) - 1).bit_length()


@cache
def compiled(experts, top_k, cluster, masked, renormalize, scaling, early_trigger, arch):
    """The compiled kernel of one call site and cluster size."""
    kernel = MoeRouteCluster(experts, top_k, cluster, masked, renormalize, scaling, early_trigger)
    return compile_kernel(kernel, *operands(experts, top_k), arch=arch)


def prepare(spec, tokens, masked, arch):
    """Compile the launch of one call site for a number of tokens, if it is not compiled yet, and return it."""
    site = (spec.experts, spec.top_k, cluster_of(tokens), masked, spec.renormalize, spec.scaling)
    return compiled(*site, spec.overlap.early_trigger, arch)


def run(spec, logits, bias, mask, routing) -> None:
    """Launch on PyTorch's current stream; mask: [T] uint8 or None."""
    kernel = prepare(spec, logits.shape[0], mask is not None, arch_of(logits.device))
    unused = routing.count.view(torch.uint8)
    groups = (routing.experts, routing.rows, routing.count)
    choices = (routing.weights, routing.ids)
    kernel(logits, bias, unused if mask is None else mask, *choices, *groups, routing.first, routing.local)


ROLES: tuple[Role, ...] = (
    "activation",  # logits
    "weight",  # bias
    "activation",  # padding
    *("output",) * 5,
    "scalar",
    "scalar",
)


def builds() -> list[Build]:
    """The call sites that CI compiles and audits."""
    return [_build(MoeRouteCluster(896, 16, cluster, masked)) for cluster, masked in ((1, False), (8, True))]


def _build(kernel: MoeRouteCluster) -> Build:
    return Build(
        f"moe_route cluster={kernel.cluster} masked={kernel.masked}",
        type(kernel).__name__,
        lambda target: compile_image(kernel, *operands(kernel.experts, kernel.top_k), arch=target),
        ROLES,
        dynamic_shared_bytes=kernel.smem_bytes,
    )
