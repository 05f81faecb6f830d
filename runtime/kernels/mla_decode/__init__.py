"""Latent attention in the weight-absorbed form, for decode and speculative verify."""

from runtime.kernels.mla_decode.reference import mla_absorbed, mla_absorbed_batched

__all__ = ["mla_absorbed", "mla_absorbed_batched"]
