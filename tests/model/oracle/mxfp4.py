"""MXFP4 from the OCP Microscaling formats 1.0: elements E2M1, one E8M0 scale for 32 of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ELEMENTS_PER_SCALE = 32


def decode(packed: NDArray[np.uint8], scale: NDArray[np.uint8]) -> Array:
    """packed uint8 [..., n/2] with the earlier element in the low nibble, scale uint8 [..., n/32] → [..., n]."""
    code = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), dtype=np.int64)
    code[..., 0::2], code[..., 1::2] = packed % 16, packed // 16
    sign = np.where(code >= 8, -1.0, 1.0)
    exponent, mantissa = code % 8 // 2, code % 2
    # E2M1, bias 1: exponent 0 is subnormal, its only non-zero magnitude a half
    magnitude = np.where(exponent == 0, mantissa / 2, (1 + mantissa / 2) * 2.0 ** (exponent - 1))
    factor = 2.0 ** (scale.astype(np.float64) - 127)
    return sign * magnitude * np.repeat(factor, ELEMENTS_PER_SCALE, axis=-1)
