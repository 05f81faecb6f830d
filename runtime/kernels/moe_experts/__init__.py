"""The routed experts of a decode step, on MXFP4 weights as vLLM's Humming backend keeps them."""

from runtime.kernels.moe_experts.reference import moe_experts

__all__ = ["moe_experts"]
