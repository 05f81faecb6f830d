"""The dependency wait of programmatic dependent launch, for Triton kernels."""

import triton
import triton.language as tl


@triton.jit
def dependency_wait(PDL: tl.constexpr):
    """Wait for the preceding kernel, then let the next one start: it may rely on all kernels before this one.

    `PDL` is false in the interpreter, which has no such instruction.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
