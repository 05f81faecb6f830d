"""Test settings of the kernels: one thread (the operands are tiny), a fixed seed, GPU tests only where a GPU is."""

import os
from collections.abc import Iterator
from importlib import import_module

import pytest
import torch


def pytest_sessionstart() -> None:
    """Fail at once where K3_REQUIRE_COMPILERS promises compilers that are not there: their tests would be skipped."""
    if os.environ.get("K3_REQUIRE_COMPILERS"):
        import_module("cutlass")
        import_module("triton")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` without a GPU, unless K3_REQUIRE_GPU says that there must be one."""
    if torch.cuda.is_available() or os.environ.get("K3_REQUIRE_GPU"):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
