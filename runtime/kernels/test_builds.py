"""Every kernel compiles for every target without a GPU, keeps the audit's rules and stays within its limits."""

import importlib

import pytest

pytest.importorskip("cutlass", reason="no CuTe DSL here: `make check-kernels`")
pytest.importorskip("triton", reason="no Triton here: `make check-kernels`")

from runtime.kernels.common.workshop.builds import TARGETS
from runtime.kernels.common.workshop.device_code import build_modules, kernels, sources

pytestmark = pytest.mark.compilers
BUILDS = [build for module in build_modules() for build in importlib.import_module(module).builds()]
CASES = [(build, target) for build in BUILDS for target in build.targets]


@pytest.mark.parametrize(("build", "target"), CASES, ids=[f"{b.name} {t}" for b, t in CASES])
def test_a_kernel_compiles_and_passes_the_audit(build, target):
    assert build.problems(target) == []


def test_every_kernel_of_every_operator_is_built_for_every_target():
    wanted = {
        (kernel, target) for kernel in kernels(path.read_text() for path in sources()) for target in TARGETS
    }
    assert wanted == {(build.kernel, target) for build, target in CASES}


def test_no_two_builds_share_a_name():
    names = [build.name for build in BUILDS]
    assert sorted(set(names)) == sorted(names)
