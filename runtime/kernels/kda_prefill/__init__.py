"""Kimi Delta Attention over a prompt, in chunks."""

from runtime.kernels.kda_prefill.reference import kda_chunked

__all__ = ["kda_chunked"]
