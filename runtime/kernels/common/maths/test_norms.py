"""RMSNorm and L2 norm against the formula in FP64."""

import pytest
import torch

from runtime.kernels.common.maths.norms import l2_norm, rms_norm

DTYPES = {"fp64": (torch.float64, 1e-14), "fp32": (torch.float32, 1e-6), "bf16": (torch.bfloat16, 2**-8)}


@pytest.mark.parametrize("dtype, tolerance", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("size", [1, 7, 128])
def test_rms_norm_is_the_formula_rounded_once(dtype, tolerance, size):
    x, weight = (3 * torch.randn(5, 2, size)).to(dtype), torch.randn(size).to(dtype)
    wide = x.double()
    expected = wide / (wide.pow(2).sum(-1, keepdim=True) / size + 1e-5).sqrt() * weight.double()
    result = rms_norm(x, weight, 1e-5)
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance * 1e-2)


def test_rms_norm_of_bf16_input_with_fp32_weight_rounds_only_the_result():
    x, weight = torch.randn(64, 128).bfloat16(), torch.randn(128)
    assert torch.equal(rms_norm(x, weight, 1e-5), rms_norm(x.float(), weight, 1e-5).bfloat16())


@pytest.mark.parametrize("dtype, tolerance", DTYPES.values(), ids=DTYPES)
def test_l2_norm_is_the_formula_rounded_once(dtype, tolerance):
    x = torch.randn(4, 33).to(dtype)
    expected = x.double() / (x.double().pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(l2_norm(x).double(), expected, rtol=tolerance, atol=tolerance * 1e-2)


def test_norms_of_a_zero_vector_are_zero_not_nan():
    assert torch.equal(l2_norm(torch.zeros(2, 8)), torch.zeros(2, 8))
    assert torch.equal(rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-5), torch.zeros(2, 8))


def test_norms_survive_bf16_values_whose_square_overflows_fp16():
    x = torch.full((1, 64), 1e4, dtype=torch.bfloat16)
    torch.testing.assert_close(rms_norm(x, torch.ones(64), 1e-5), torch.ones(1, 64, dtype=torch.bfloat16))


@pytest.mark.parametrize("size", [5, 64, 7168])
def test_a_row_does_not_depend_on_the_batch(size):
    x, weight = torch.randn(37, size), torch.randn(size)
    for norm in (lambda rows: rms_norm(rows, weight, 1e-5), l2_norm):
        together = norm(x)
        assert all(torch.equal(norm(x[i : i + 1]), together[i : i + 1]) for i in range(37))
