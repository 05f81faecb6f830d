"""Row-stable products: correct, and a row's bits never depend on the batch around it (CPU)."""

import pytest
import torch

from runtime.kernels.common.maths.linear import (
    row_stable_grouped_linear,
    row_stable_linear,
    row_stable_matmul,
)

SHAPES = [(1, 3), (5, 1), (7, 5), (16, 16), (63, 33), (64, 128), (600, 96), (1024, 64)]
THREADS = [1, 2]
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


@pytest.mark.parametrize("inputs, outputs", SHAPES)
def test_linear_is_the_product(inputs, outputs):
    x, weight = (
        torch.randn(2, 3, inputs, dtype=torch.float64),
        torch.randn(outputs, inputs, dtype=torch.float64),
    )
    torch.testing.assert_close(row_stable_linear(x, weight), torch.einsum("abr,or->abo", x, weight))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("inputs, outputs", SHAPES)
def test_a_linear_row_does_not_depend_on_the_batch(inputs, outputs, threads, dtype):
    torch.set_num_threads(threads)
    x, weight = torch.randn(130, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    whole = row_stable_linear(x, weight)
    for rows in [1, 2, 3, 5, 16, 17, 65, 130]:
        for start in {0, 1, 130 - rows}:
            part = row_stable_linear(x[start : start + rows], weight)
            assert torch.equal(part, whole[start : start + rows]), (rows, start)


def test_linear_accumulates_bf16_products_in_fp32_and_rounds_once():
    x, weight = torch.randn(9, 4096).bfloat16(), torch.randn(6, 4096).bfloat16()
    assert torch.equal(row_stable_linear(x, weight), row_stable_linear(x.float(), weight.float()).bfloat16())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("inputs, outputs", [(5, 7), (32, 48), (300, 20)])
def test_a_grouped_product_is_each_group_with_its_own_weight_bit_for_bit(inputs, outputs, dtype):
    sizes = [16, 0, 48, 16]
    x, weights = torch.randn(80, inputs).to(dtype), torch.randn(4, outputs, inputs).to(dtype)
    weights[1] = torch.nan
    parts = [row_stable_linear(rows, w) for rows, w in zip(x.split(sizes), weights, strict=True)]
    assert torch.equal(row_stable_grouped_linear(x, weights, sizes), torch.cat(parts))


def test_products_of_no_rows_are_empty():
    assert row_stable_grouped_linear(torch.zeros(0, 4), torch.zeros(2, 3, 4), [0, 0]).shape == (0, 3)
    assert row_stable_linear(torch.zeros(0, 4), torch.zeros(3, 4)).shape == (0, 3)
    assert row_stable_matmul(torch.zeros(2, 0, 4), torch.zeros(2, 4, 3)).shape == (2, 0, 3)


@pytest.mark.parametrize("inner", [0, 1, 15, 128, 129, 1000])
def test_matmul_is_the_product(inner):
    a, b = torch.randn(3, 5, inner, dtype=torch.float64), torch.randn(3, inner, 7, dtype=torch.float64)
    torch.testing.assert_close(row_stable_matmul(a, b), a @ b)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("inner", [1, 40, 127, 300, 576])
def test_a_matmul_entry_does_not_depend_on_the_other_axes_or_on_appended_zeros(inner, threads, dtype):
    torch.set_num_threads(threads)
    a, b = torch.randn(5, 21, inner, dtype=dtype), torch.randn(5, inner, 35, dtype=dtype)
    whole = row_stable_matmul(a, b)
    for batch, rows, columns, zeros in [(1, 21, 35, 0), (5, 1, 35, 3), (2, 7, 1, 500), (3, 20, 18, 129)]:
        pad_a = torch.cat([a, a.new_zeros(5, 21, zeros)], dim=2)[:batch, :rows]
        pad_b = torch.cat([b, b.new_zeros(5, zeros, 35)], dim=1)[:batch, :, :columns]
        assert torch.equal(row_stable_matmul(pad_a, pad_b), whole[:batch, :rows, :columns])
