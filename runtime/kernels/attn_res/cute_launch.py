"""Compile and run the cluster kernel of Attention Residuals."""

from functools import cache

import cutlass

from runtime.kernels.attn_res.cute_kernel import AttnResCluster
from runtime.kernels.common.launch.cute_compile import compile_image, compile_kernel, symbol, tensor
from runtime.kernels.common.launch.device import arch_of
from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.common.workshop.audit import Limits, Role
from runtime.kernels.common.workshop.builds import Build


def operands(hidden: int):
    """Stand-ins for the kernel's arguments, in order: any number of rows, row strides a multiple of 8."""
    rows = symbol()

    def row():
        return tensor((rows, hidden), (symbol(8), 1))

    def weight():
        return tensor((hidden,), (1,))

    blocks = tensor((rows, symbol(), hidden), (symbol(8), symbol(8), 1))
    eps = cutlass.Float32(1e-5)
    return (row(), row(), blocks, weight(), weight(), weight(), row(), eps, eps)


@cache
def compiled(hidden, num_blocks, write, has_delta, has_norm, overlap, cluster, resident, arch):
    """The compiled kernel of one call site and launch shape."""
    kernel = AttnResCluster(hidden, num_blocks, write, has_delta, has_norm, overlap, cluster, resident)
    return compile_kernel(kernel, *operands(hidden), arch=arch)


def run(
    prefix,
    delta,
    blocks,
    out,
    *,
    num_blocks,
    write,
    score_norm,
    score_vec,
    eps,
    out_norm,
    out_eps,
    overlap,
    cluster,
    resident,
):
    """Launch on PyTorch's current stream; `prefix`, and `blocks[:, write]` if asked, are updated in place."""
    kernel = compiled(
        prefix.shape[1],
        num_blocks,
        write,
        delta is not None,
        out_norm is not None,
        overlap,
        cluster,
        resident,
        arch_of(prefix.device),
    )
    kernel(
        prefix,
        prefix if delta is None else delta,
        blocks,
        score_norm,
        score_vec,
        score_norm if out_norm is None else out_norm,
        out,
        eps,
        out_eps,
    )


ROLES: tuple[Role, ...] = (
    "state",
    "activation",
    "state",
    "weight",
    "weight",
    "weight",
    "output",
    "scalar",
    "scalar",
)


def builds() -> list[Build]:
    """The call sites and launch shapes that CI compiles and audits."""
    sites = [  # (num_blocks, write, has_delta, has_norm)
        (0, 0, False, True),
        (1, None, True, True),
        (3, 3, True, True),
        (8, None, True, True),
        (8, None, True, False),
    ]
    shapes = [(7, 4), (7, 8), (2, 2)]  # the last for hidden sizes that seven does not divide
    return [
        _build(AttnResCluster(7168, *site, Overlap(settled, settled), *shape))
        for site in sites
        for settled in (False, True)
        for shape in shapes
        if site[0] in (0, 8) or (settled, shape) == (True, (7, 8))
    ]


def _build(kernel: AttnResCluster) -> Build:
    name = f"attn_res blocks={kernel.num_blocks} write={kernel.write} norm={kernel.has_norm} "
    return Build(
        name + f"settled={kernel.settled} cluster={kernel.cluster} fit={kernel.must_fit}",
        type(kernel).__name__,
        lambda target: compile_image(kernel, *operands(kernel.hidden), arch=target),
        # Without a delta the kernel's second argument is the prefix again.
        ROLES if kernel.has_delta else ("state", "state", *ROLES[2:]),
        settled=kernel.settled,
        early_trigger=kernel.early_trigger,
        dynamic_shared_bytes=kernel.smem_bytes,
        limits=Limits(registers=96 if kernel.must_fit == 5 else 168, must_contain=("STAS", "LDG.E.NA.128")),
    )
