"""Routing of a decode step: chosen experts, their weights, and tokens grouped by expert."""

from runtime.kernels.moe_route.reference import moe_route

__all__ = ["moe_route"]
