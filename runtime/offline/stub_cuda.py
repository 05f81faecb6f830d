"""A CUDA platform for vLLM that is only described, so that its configuration can be built without a GPU.

vLLM 0.33 imports compiled modules and asks the platform for names, memory and capabilities long before it
touches a device. ``install`` answers those questions from a description; nothing can be computed with it.
"""

from __future__ import annotations

import importlib
import sys
import types
from dataclasses import dataclass
from typing import Any
from unittest.mock import MagicMock

COMPILED = ("vllm._C_stable_libtorch", "vllm._moe_C_stable_libtorch", "vllm._C", "vllm._moe_C")
SUPPORT_QUERIES = (
    "cutlass_scaled_mm_supports_fp8",
    "cutlass_scaled_mm_supports_block_fp8",
    "cutlass_group_gemm_supported",
    "cutlass_scaled_mm_supports_fp4",
)


@dataclass
class Gpu:
    """The GPU that the platform pretends to have; ``count`` is per host."""

    capability: tuple[int, int] = (10, 3)
    name: str = "NVIDIA GB300"
    memory_bytes: int = 298_013_687_808
    count: int = 4


def install(gpu: Gpu) -> None:
    """Make vLLM's current platform a CUDA platform with ``gpu``; call it before other vllm imports."""
    _stub_compiled_modules()
    from vllm import platforms

    platforms.current_platform = _platform(gpu)
    from vllm import triton_utils

    # Model Runner V2 asks for Triton; a GPU host has it
    triton_utils.HAS_TRITON = True


def _stub_compiled_modules() -> None:
    """Empty modules where the compiled ones cannot be loaded (no libcuda, or a build without kernels)."""
    try:
        importlib.import_module(COMPILED[0])
    except ImportError:
        for name in COMPILED:
            sys.modules[name] = types.ModuleType(name)
        _stub_operators()
    try:
        importlib.import_module("vllm.vllm_flash_attn.flash_attn_interface")
    except ImportError:
        flash = types.ModuleType("vllm.vllm_flash_attn")
        flash.__getattr__ = _mock_attribute  # type: ignore[method-assign]
        sys.modules["vllm.vllm_flash_attn"] = flash
        sys.modules["vllm.vllm_flash_attn.flash_attn_interface"] = flash


def _mock_attribute(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return MagicMock(name=name)


def _stub_operators() -> None:
    import torch

    library = torch.library.Library("_C", "FRAGMENT")
    for name in SUPPORT_QUERIES:
        if not hasattr(torch.ops._C, name):
            library.define(f"{name}(int capability) -> bool")
            library.impl(name, lambda _: True, "CompositeExplicitAutograd")
    # referenced at import time without asking whether it exists
    if not hasattr(torch.ops._C, "rotary_embedding"):
        torch.ops._C.rotary_embedding = MagicMock(name="rotary_embedding")
    # a library's definitions last as long as the object
    _KEEP.append(library)


_KEEP: list[Any] = []


def _platform(gpu: Gpu) -> Any:
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    class DescribedCuda(NonNvmlCudaPlatform):
        """Answers from ``gpu``, which may be changed between configurations."""

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(*gpu.capability)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return gpu.name

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return gpu.memory_bytes

        @classmethod
        def device_count(cls) -> int:
            return gpu.count

        @classmethod
        def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
            return True

        @classmethod
        def get_cuda_runtime_major(cls) -> int:
            return 13

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return 132 if gpu.capability[0] == 9 else 148

        @classmethod
        def import_kernels(cls) -> None:
            return None

        @classmethod
        def get_all_device_numa_nodes(cls) -> None:
            return None

        def is_cumem_allocator_available(self) -> bool:
            return True

        @classmethod
        def is_integrated_gpu(cls, device_id: int = 0) -> bool:
            return False

    return DescribedCuda()
