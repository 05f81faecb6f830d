"""Compile and run the weight-streaming GEMM."""

from functools import cache

import torch

from runtime.kernels.common.launch.cute_compile import compile_image, compile_kernel, symbol, tensor
from runtime.kernels.common.launch.device import H200, arch_of
from runtime.kernels.common.workshop.audit import Limits, Role
from runtime.kernels.common.workshop.builds import TARGETS, Build
from runtime.kernels.skinny_gemm.cute_kernel import SkinnyGemmKernel
from runtime.kernels.skinny_gemm.plans import Bucket, Plan
from runtime.kernels.skinny_gemm.table import PLANS


def operands(k: int, epilogue: str):
    """Stand-ins for x, w and out."""
    rows = symbol()
    dtype = torch.float32 if epilogue == "fp32" else torch.bfloat16
    out = tensor((rows, symbol()), (symbol(), 1), dtype, align=4 if epilogue == "fp32" else 2)
    return tensor((rows, k), (symbol(8), 1)), tensor((symbol(), k), (k, 1)), out


@cache
def compiled(k, warps, splits, rows, tile, depth, resident, direct, epilogue, arch):
    """The compiled kernel of one K, launch shape and epilogue; any N and any M up to `rows`."""
    kernel = SkinnyGemmKernel(k, tile, rows, warps, depth, splits, resident, epilogue, direct)
    return compile_kernel(kernel, *operands(k, epilogue), arch=arch)


def run(x, w, out, *, plan: Plan, bucket: Bucket, epilogue: str) -> None:
    """Launch on PyTorch's current stream."""
    prepare(x.shape[1], plan, bucket, epilogue, arch_of(x.device))(x, w, out)


def prepare(k: int, plan: Plan, bucket: Bucket, epilogue: str, arch: str):
    """The compiled kernel of a plan's bucket; compiles at the first call."""
    shape = (plan.warps, plan.splits, bucket.rows, bucket.tile, bucket.depth, bucket.resident, bucket.direct)
    return compiled(k, *shape, epilogue, arch)


ROLES: tuple[Role, ...] = (
    "weight",
    "scalar",
    "activation",
    "output",
)  # the weight's tensor map and its layout come first


def builds() -> list[Build]:
    """What CI compiles and audits: for Hopper the smallest and largest batch of every weight, else a selection."""
    found = []
    for (n, k, epilogue), plan in PLANS[H200].items():
        for bucket in (plan.buckets[0], plan.buckets[-1]):
            everywhere = (n, k) in ((6288, 7168), (896, 7168), (7168, 1536)) or epilogue == "situ"
            found.append(_build(n, k, epilogue, plan, bucket, TARGETS if everywhere else TARGETS[:1]))
    return found


def _build(n, k, epilogue, plan, bucket, targets) -> Build:
    kernel = SkinnyGemmKernel(
        k,
        bucket.tile,
        bucket.rows,
        plan.warps,
        bucket.depth,
        plan.splits,
        bucket.resident,
        epilogue,
        bucket.direct,
    )
    return Build(
        f"skinny_gemm {n}x{k} {epilogue} rows={bucket.rows}",
        type(kernel).__name__,
        lambda target: compile_image(kernel, *operands(k, epilogue), arch=target),
        ROLES,
        targets=targets,
        dynamic_shared_bytes=kernel.smem_bytes,
        limits=Limits(
            stack_bytes=8, must_contain=("UTMALDG", "HMMA", "LDG.E.128" if bucket.direct else "LDGSTS")
        ),
    )
