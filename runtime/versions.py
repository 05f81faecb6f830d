"""Which vLLM this runtime was written against."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

KNOWN_VLLM = frozenset({"0.33.0"})
"""Releases whose private seams (see the modules of this package) were read and tested."""


def vllm_version() -> str:
    """The installed vLLM's version, without a local suffix."""
    try:
        return version("vllm").partition("+")[0]
    except PackageNotFoundError:
        return "unknown"


def runtime_version() -> str:
    """The version of the distribution that carries this package (a source tree has none)."""
    try:
        return version("k3ctl")
    except PackageNotFoundError:
        return "source"
