"""Every kernel compiles for every target without a GPU, keeps the audit's rules and stays within its limits."""

import importlib

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
pytest.importorskip("triton", reason="triton is not installed")

MODULES = [
    "attn_res.cute_launch",
    "attn_res.triton_kernel",
    "kda_decode.cute_launch",
    "kda_decode.triton_kernel",
    "skinny_gemm.cute_launch",
]
CASES = [
    (build, target)
    for module in MODULES
    for build in importlib.import_module(f"runtime.kernels.{module}").builds()
    for target in build.targets
]


@pytest.mark.parametrize(("build", "target"), CASES, ids=[f"{b.name} {t}" for b, t in CASES])
def test_a_kernel_compiles_and_passes_the_audit(build, target):
    assert build.problems(target) == []
