"""Arithmetic that operators share: precision, norms, activations, row-stable products, MXFP4."""
