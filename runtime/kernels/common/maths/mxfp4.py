"""MXFP4 in PyTorch: E2M1 codes, two per byte, with one E8M0 scale per 32 consecutive elements.

Format: OCP Microscaling Formats (MX) 1.0. Byte order as compressed-tensors packs it: the even element in
the low nibble.
"""

import torch
from torch import Tensor

GROUP = 32
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BIAS = 127
_NAN_SCALE = 255


def decode_mxfp4(packed: Tensor, scales: Tensor) -> Tensor:
    """Return the stored numbers as float32.

    packed: uint8 [..., n/2]. scales: uint8 [..., n/32], value 2^(s-127), 255 means NaN. Returns [..., n].
    Exact, except that magnitudes from 2 at scale 254 and from 4 at scale 253 are beyond float32: inf.

    Raises ValueError if the shapes do not belong together.
    """
    if packed.shape[-1] * 2 != scales.shape[-1] * GROUP or packed.shape[:-1] != scales.shape[:-1]:
        raise ValueError(f"packed {tuple(packed.shape)} does not fit scales {tuple(scales.shape)}")
    codes = torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(-2).long()
    values = _code_values(packed.device)[codes].unflatten(-1, (-1, GROUP))
    scale = _scale_values(packed.device).to(torch.float32)[scales.long()]
    return (values * scale[..., None]).flatten(-2)


def encode_mxfp4(values: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise to (packed uint8 [..., n/2], scales uint8 [..., n/32]).

    values: [..., n], finite, n a multiple of 32. A group's scale is 2^(floor(log2(max|x|)) - 2), the rule of
    the OCP specification; elements round to nearest, ties to the even code, and saturate at 6 scales.

    Raises ValueError for another n or for infinite or NaN values.
    """
    if values.shape[-1] % GROUP:
        raise ValueError(f"the last axis must be a multiple of {GROUP}, got {values.shape[-1]}")
    if not bool(torch.isfinite(values).all()):
        raise ValueError("MXFP4 cannot hold infinite or NaN values")
    groups = values.to(torch.float64).unflatten(-1, (-1, GROUP))
    exponent = torch.frexp(groups.abs().amax(-1)).exponent - 1 - 2  # frexp's mantissa is in [0.5, 1)
    scales = (exponent + _BIAS).clamp(0, _NAN_SCALE - 1)
    scaled = groups / _scale_values(values.device)[scales.long()][..., None]
    codes = torch.bucketize(scaled.abs(), _round_up_above(values.device))
    codes = (codes | (torch.signbit(scaled).long() << 3)).flatten(-2).to(torch.uint8)
    return codes[..., 0::2] | (codes[..., 1::2] << 4), scales.to(torch.uint8)


def _code_values(device: torch.device) -> Tensor:
    """Value of each 4-bit code: sign in bit 3, magnitude in bits 0..2."""
    magnitudes = torch.tensor(_MAGNITUDES, dtype=torch.float32, device=device)
    return torch.cat([magnitudes, -magnitudes])


def _scale_values(device: torch.device) -> Tensor:
    """Value of each scale byte, in float64; all are exact in float32 too, 2^-127 as a subnormal."""
    values = [2.0 ** (byte - _BIAS) for byte in range(_NAN_SCALE)]
    return torch.tensor([*values, float("nan")], dtype=torch.float64, device=device)


def _round_up_above(device: torch.device) -> Tensor:
    """Largest magnitude that rounds to each code: the midpoint above it if that is even, else just below."""
    magnitudes = torch.tensor(_MAGNITUDES, dtype=torch.float64, device=device)
    midpoints = (magnitudes[:-1] + magnitudes[1:]) / 2
    midpoints[1::2] = torch.nextafter(midpoints[1::2], torch.zeros_like(midpoints[1::2]))
    return midpoints
