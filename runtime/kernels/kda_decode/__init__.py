"""Kimi Delta Attention token by token: convolution, gate, recurrence, gated norm; decode and verify."""

from runtime.kernels.kda_decode.reference import (
    bounded_gate,
    conv_update,
    gated_norm,
    kda_recurrent,
    kda_step,
)

__all__ = ["bounded_gate", "conv_update", "gated_norm", "kda_recurrent", "kda_step"]
