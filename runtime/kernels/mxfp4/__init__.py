"""MXFP4, the storage format of K3's routed experts."""

from runtime.kernels.mxfp4.reference import decode_mxfp4, encode_mxfp4

__all__ = ["decode_mxfp4", "encode_mxfp4"]
