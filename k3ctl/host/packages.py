"""Versions of what would serve, without importing any of it: package metadata, library file names."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from k3ctl.host.types import Library

PACKAGES = (
    "vllm",
    "torch",
    "triton",
    "flashinfer-python",
    "transformers",
    "guidellm",
    "nvidia-ml-py",
    "pynvml",
    "nvidia-nccl-cu13",
    "nvidia-nccl-cu12",
    "nvidia-cutlass-dsl",
    "cuda-bindings",
)
_VERSION = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)*)$")


def packages() -> dict[str, str]:
    """Installed distributions of interest and their versions."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def nccl(env: Mapping[str, str], installed: Mapping[str, str]) -> tuple[Library, ...]:
    """Every NCCL that could be loaded, the one that wins first.

    vLLM takes ``VLLM_NCCL_SO_PATH``; otherwise the loader takes ``LD_LIBRARY_PATH`` before the wheel's run
    path, and the wheel before the system.
    """
    found = []
    if chosen := env.get("VLLM_NCCL_SO_PATH"):
        found.append(_library("nccl", Path(chosen), "VLLM_NCCL_SO_PATH"))
    for directory in filter(None, env.get("LD_LIBRARY_PATH", "").split(os.pathsep)):
        if (path := Path(directory) / "libnccl.so.2").exists():
            found.append(_library("nccl", path, "LD_LIBRARY_PATH"))
    for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        if name in installed:
            found.append(Library("nccl", name, installed[name], "wheel"))
    for directory in (
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/local/lib",
    ):
        if (path := Path(directory) / "libnccl.so.2").exists():
            found.append(_library("nccl", path, "system"))
    return tuple(found)


def _library(name: str, path: Path, origin: str) -> Library:
    match = _VERSION.search(str(path.resolve()))
    return Library(name=name, path=str(path), version=match.group(1) if match else None, origin=origin)


def mapped(maps: str, stem: str) -> Iterator[str]:
    """Paths of libraries named ``stem…`` in the text of a /proc/PID/maps."""
    seen = set()
    for line in maps.splitlines():
        path = line.partition("/")[2]
        if path and Path(path).name.startswith(stem) and path not in seen:
            seen.add(path)
            yield "/" + path
