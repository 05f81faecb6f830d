"""MXFP4: every code, every scale, nibble order, rounding, round trips."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kernels.common.maths.mxfp4 import decode_mxfp4, encode_mxfp4

VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
ALL_CODES = torch.arange(16, dtype=torch.uint8)[:, None] * 0x11  # both nibbles of a byte hold the code


def scale_bytes(*values):
    return torch.tensor(values, dtype=torch.uint8)


def group(*values):
    """A group of 32 elements that starts with `values` and has a magnitude-4 element, so its scale is 2^0."""
    return torch.tensor([*values, *[0.0] * (31 - len(values)), 4.0], dtype=torch.float64)


def test_every_byte_decodes_to_its_two_codes_even_index_in_the_low_nibble():
    packed = torch.arange(256, dtype=torch.uint8)
    decoded = decode_mxfp4(packed, torch.full((16,), 127, dtype=torch.uint8))
    expected = [VALUES[code] for byte in range(256) for code in (byte & 15, byte >> 4)]
    assert decoded.dtype == torch.float32
    assert decoded.tolist() == expected
    assert [math.copysign(1, x) for x in decoded.tolist()] == [math.copysign(1, x) for x in expected]


@pytest.mark.parametrize("scale", range(255))
def test_every_scale_multiplies_every_code_by_its_power_of_two(scale):
    decoded = decode_mxfp4(
        ALL_CODES.expand(16, 16).contiguous(), torch.full((16, 1), scale, dtype=torch.uint8)
    )
    limit = torch.finfo(torch.float32).max
    for code, row in enumerate(decoded[:, 0].tolist()):
        exact = VALUES[code] * 2.0 ** (scale - 127)
        assert row == (exact if abs(exact) <= limit else math.copysign(math.inf, exact))


def test_scale_255_means_nan():
    assert decode_mxfp4(torch.full((16,), 0x22, dtype=torch.uint8), scale_bytes(255)).isnan().all()


def test_each_group_of_32_has_its_own_scale():
    decoded = decode_mxfp4(
        torch.full((2, 32), 0x22, dtype=torch.uint8), scale_bytes(127, 130, 126, 120).reshape(2, 2)
    )
    assert decoded[:, ::32].tolist() == [[1.0, 8.0], [0.5, 2**-7]]


@pytest.mark.parametrize(
    "value, rounded",
    [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)],
    ids=str,
)
def test_a_tie_rounds_to_the_even_code(value, rounded):
    below, above = math.nextafter(value, 0), math.nextafter(value, 9)
    decoded = decode_mxfp4(*encode_mxfp4(group(value, -value, below, above)))[:4].tolist()
    assert decoded[:2] == [rounded, -rounded]
    assert decoded[2] < decoded[3], "the neighbours round to different codes"
    assert rounded in decoded[2:]


def test_values_above_six_scales_saturate():
    decoded = decode_mxfp4(*encode_mxfp4(group(7.9, -7.9, 6.0)))
    assert decoded[:3].tolist() == [6.0, -6.0, 6.0]


def test_zeros_and_signs_survive():
    values = torch.zeros(32)
    values[1] = -0.0
    decoded = decode_mxfp4(*encode_mxfp4(values))
    assert torch.equal(decoded, torch.zeros(32)) and torch.signbit(decoded).nonzero().tolist() == [[1]]


@settings(max_examples=100, deadline=None)
@given(
    codes=st.lists(st.integers(0, 255), min_size=32, max_size=32),
    scales=st.lists(st.integers(0, 252), min_size=2, max_size=2),
)
def test_decoded_values_encode_without_loss(codes, scales):
    values = decode_mxfp4(torch.tensor(codes, dtype=torch.uint8), scale_bytes(*scales))
    again = decode_mxfp4(*encode_mxfp4(values))
    assert torch.equal(again, values)


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.floats(-1e6, 1e6), min_size=32, max_size=32))
def test_the_error_is_half_a_step_below_six_scales_and_two_scales_above(values):
    x = torch.tensor(values, dtype=torch.float64)
    packed, scales = encode_mxfp4(x)
    scale = 2.0 ** (scales.double() - 127)
    magnitude = x.abs() / scale
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    error = (decode_mxfp4(packed, scales).double() - x).abs() / scale
    assert (error <= torch.where(magnitude <= 6, step / 2, 2.0)).all()
    assert (magnitude < 8).all()


@pytest.mark.parametrize(
    "amax, scale",
    [(1e-45, 0), (2.0**-126, 0), (2.0**-125, 0), (2.0**-124, 1), (1.0, 125), (6.0, 127), (3e38, 252)],
)
def test_the_scale_follows_the_largest_magnitude_and_stops_at_the_smallest(amax, scale):
    _, scales = encode_mxfp4(torch.tensor([amax] + [0.0] * 31))
    assert scales.tolist() == [scale]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_leading_axes_and_dtypes_are_kept_apart(dtype):
    values = torch.randn(3, 2, 64).to(dtype)
    packed, scales = encode_mxfp4(values)
    assert packed.shape == (3, 2, 32) and scales.shape == (3, 2, 2)
    one = encode_mxfp4(values[1, 1])
    assert torch.equal(packed[1, 1], one[0]) and torch.equal(scales[1, 1], one[1])
    assert ((decode_mxfp4(packed, scales) - values).abs() < 0.25 * values.abs().amax()).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(bad):
    with pytest.raises(ValueError, match="infinite or NaN"):
        encode_mxfp4(torch.full((32,), bad))


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="multiple of 32"):
        encode_mxfp4(torch.zeros(33))
    with pytest.raises(ValueError, match="does not fit"):
        decode_mxfp4(torch.zeros(2, 16, dtype=torch.uint8), scale_bytes(127, 127))
