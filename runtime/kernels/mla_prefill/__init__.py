"""Latent attention with expanded keys and values, for prefill."""

from runtime.kernels.mla_prefill.reference import mla_expanded

__all__ = ["mla_expanded"]
