"""Kimi Delta Attention: convolution, gate, recurrence, gated norm; decode, verify, and over a prompt in chunks."""

from runtime.kernels.kda.chunked import kda_chunked
from runtime.kernels.kda.reference import (
    bounded_gate,
    conv_update,
    gated_norm,
    kda_recurrent,
    kda_step,
)

__all__ = ["bounded_gate", "conv_update", "gated_norm", "kda_chunked", "kda_recurrent", "kda_step"]
