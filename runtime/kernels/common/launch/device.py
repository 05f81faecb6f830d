"""What the GPU and the installed compilers at hand can do."""

from dataclasses import dataclass
from functools import cache
from importlib import util

import torch

H200 = "NVIDIA H200"
"""The driver's name of the product that the launch tables were measured on."""


@dataclass(frozen=True)
class Device:
    """What launch tables are keyed by. name: the product, as the driver says it; arch: as `arch_of`."""

    name: str
    arch: str


def device_of(device: torch.device) -> Device:
    """The product and architecture of a device; ("cpu", "cpu") for the CPU."""
    if device.type != "cuda":
        return Device(device.type, device.type)
    index = device.index if device.index is not None else torch.cuda.current_device()
    return Device(_name(index), arch_of(device))


@cache
def _name(index: int) -> str:
    return torch.cuda.get_device_name(index)


@cache
def _arch(index: int) -> str:
    major, minor = torch.cuda.get_device_capability(index)
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def arch_of(device: torch.device) -> str:
    """The compiler's name of a device's architecture, e.g. "sm_90a"; "cpu" for the CPU."""
    if device.type != "cuda":
        return device.type
    return _arch(device.index if device.index is not None else torch.cuda.current_device())


@cache
def multiprocessors(index: int) -> int:
    """Multiprocessors of a GPU."""
    return torch.cuda.get_device_properties(index).multi_processor_count


def supports_pdl(arch: str) -> bool:
    """Whether kernels can be chained by programmatic dependent launch on `arch`."""
    return arch.startswith("sm_") and int(arch[3:].rstrip("a")) >= 90


def missing_packages(*modules: str) -> tuple[str, ...]:
    """One reason for each of `modules` that is not installed."""
    return tuple(
        f"the Python package with module {m} is not installed" for m in modules if util.find_spec(m) is None
    )
