"""K3's mixture of experts: router, routed experts in the latent space, gated MLP."""

from runtime.kernels.latent_moe.reference import experts, gated_mlp, route

__all__ = ["experts", "gated_mlp", "route"]
