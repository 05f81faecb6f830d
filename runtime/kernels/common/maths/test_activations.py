"""SiTU: the formula, its bounds, its behaviour far out."""

import math

import pytest
import torch

from runtime.kernels.common.maths.activations import situ


@pytest.mark.parametrize("gate", [-30.0, -3.0, -0.1, 0.0, 0.1, 3.0, 30.0])
@pytest.mark.parametrize("up", [-200.0, -1.0, 0.0, 1.0, 200.0])
def test_situ_is_the_formula(gate, up):
    expected = 4 * math.tanh(gate / 4) / (1 + math.exp(-gate)) * 25 * math.tanh(up / 25)
    result = situ(torch.tensor([gate], dtype=torch.float64), torch.tensor([up], dtype=torch.float64))
    assert result.item() == pytest.approx(expected, rel=1e-14, abs=1e-300)


def test_situ_takes_other_bounds():
    result = situ(torch.tensor(1e6), torch.tensor(-1e6), beta=2.0, linear_beta=3.0)
    assert result.item() == -6.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("large", [1e3, 1e30, math.inf])
def test_situ_saturates_at_beta_times_linear_beta(dtype, large):
    gate = torch.tensor([large, large, -large, -large], dtype=dtype)
    up = torch.tensor([large, -large, large, -large], dtype=dtype)
    assert situ(gate, up).tolist() == [100.0, -100.0, 0.0, 0.0]


def test_situ_stays_inside_its_bounds():
    gate, up = torch.meshgrid(torch.linspace(-99, 99, 301), torch.linspace(-999, 999, 301), indexing="ij")
    assert situ(gate, up).abs().max().item() <= 100.0


def test_situ_of_bf16_is_the_fp32_result_rounded_once():
    gate, up = (5 * torch.randn(1000)).bfloat16(), (30 * torch.randn(1000)).bfloat16()
    result = situ(gate, up)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, situ(gate.float(), up.float()).bfloat16())
