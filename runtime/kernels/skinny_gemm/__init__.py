"""Weight-streaming matrix product for the few rows of a decode step."""

from runtime.kernels.skinny_gemm.reference import skinny_gemm

__all__ = ["skinny_gemm"]
