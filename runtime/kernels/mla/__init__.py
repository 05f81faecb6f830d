"""Latent attention: weight-absorbed for decode and verify, expanded for prefill."""

from runtime.kernels.mla.expanded import mla_expanded
from runtime.kernels.mla.reference import mla_absorbed, mla_absorbed_batched

__all__ = ["mla_absorbed", "mla_absorbed_batched", "mla_expanded"]
