"""Compiling a Triton kernel for any target on a machine without a GPU."""

from collections.abc import Mapping

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


def triton_image(
    kernel,
    target: str,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    *,
    warps: int,
    aligned: int = 0,
) -> bytes:
    """Compile `kernel` and return the device image (a cubin).

    target: "sm_90a", … signature: Triton type of every argument ("*bf16", "i32", "fp32", "constexpr"). constants:
    values of the constexpr arguments. aligned: how many leading arguments are divisible by 16, as pointers are.

    Triton appends two scratch pointers to the kernel's parameters.
    """
    number = int(target.removeprefix("sm_").rstrip("a"))
    attributes = {(i,): [["tt.divisibility", 16]] for i in range(aligned)}
    source = ASTSource(fn=kernel, signature=dict(signature), constexprs=dict(constants), attrs=attributes)
    compiled = triton.compile(
        source, target=GPUTarget("cuda", number, 32), options={"num_warps": warps, "launch_pdl": True}
    )
    return compiled.asm["cubin"]
