"""A kernel is found in source text by the way it is declared, so that none escapes compilation and audit."""

from runtime.kernels.common.workshop.device_code import build_modules, kernels, sources

SOURCE = """
import triton
from cutlass import cute

class Streaming:
    @cute.jit
    def __call__(self, x, stream): ...
    @cute.kernel
    def kernel(self, x): ...

class Host:
    def kernel(self): ...

@triton.jit
def _part(x):
    return x

@triton.jit(noinline=True)
def mix_kernel(p_x):
    _part(p_x)

def run(x):
    mix_kernel[(1,)](x)
"""


def test_kernels_are_classes_with_a_device_method_and_triton_functions_that_no_other_calls():
    assert kernels([SOURCE]) == {"Streaming", "mix_kernel"}


def test_a_part_that_another_file_calls_is_no_kernel():
    caller = "@triton.jit\ndef other_kernel(p_x):\n    mix_kernel(p_x)"
    assert kernels([SOURCE, caller]) == {"Streaming", "other_kernel"}


def test_every_operator_with_a_kernel_says_what_to_build():
    with_kernels = {path.parent.name for path in sources() if kernels([path.read_text()])} - {
        "launch",
        "workshop",
    }
    assert with_kernels == {module.split(".")[2] for module in build_modules()}
