"""Expanded latent attention against a literal transcription; visibility and padding."""

import pytest
import torch

from runtime.kernels.mla.expanded import mla_expanded

N, DN, DR, L, DV = 3, 8, 4, 20, 6
SCALE = (DN + DR) ** -0.5


def make(tokens, keys, dtype=torch.float64):
    torch.manual_seed(0)
    q, cache = torch.randn(tokens, N, DN + DR), torch.randn(keys, L + DR)
    w_uk, w_uv = torch.randn(N, DN, L), torch.randn(N, DV, L)
    return [x.to(dtype) for x in (q, cache, w_uk, w_uv)]


def literal(q, cache, w_uk, w_uv, positions):
    """Keys and values of one head at a time, then textbook attention of one query at a time."""
    out = torch.zeros(len(q), N, DV, dtype=torch.float64)
    for n in range(N):
        keys = torch.stack([torch.cat([w_uk[n] @ row[:L], row[L:]]) for row in cache])
        values = torch.stack([w_uv[n] @ row[:L] for row in cache])
        for t, position in enumerate(positions.tolist()):
            weights = (SCALE * keys[: position + 1] @ q[t, n]).softmax(0)
            out[t, n] = weights @ values[: position + 1]
    return out


@pytest.mark.parametrize("positions", [[0], [6], [0, 1, 2, 3, 4, 5, 6], [4, 5], [6, 0, 3]], ids=str)
def test_the_output_is_the_literal_attention(positions):
    positions = torch.tensor(positions)
    operands = make(len(positions), 7)
    torch.testing.assert_close(mla_expanded(*operands, positions, SCALE), literal(*operands, positions))


def test_later_rows_do_not_leak_even_as_nan():
    q, cache, w_uk, w_uv = make(2, 9)
    positions = torch.tensor([3, 5])
    expected = mla_expanded(q, cache, w_uk, w_uv, positions, SCALE)
    cache[6:] = torch.nan
    assert torch.equal(mla_expanded(q, cache, w_uk, w_uv, positions, SCALE), expected)


def test_a_query_that_sees_nothing_gets_zeros():
    q, cache, w_uk, w_uv = make(2, 4)
    out = mla_expanded(q, cache, w_uk, w_uv, torch.tensor([-1, 2]), SCALE)
    assert torch.equal(out[0], torch.zeros(N, DV).double()) and out[1].abs().min() > 0
    assert mla_expanded(q[:0], cache[:0], w_uk, w_uv, torch.arange(0), SCALE).shape == (0, N, DV)


def test_bf16_rounds_keys_values_and_output():
    q, cache, w_uk, w_uv = make(5, 40, torch.bfloat16)
    positions = torch.arange(35, 40)
    out = mla_expanded(q, cache, w_uk, w_uv, positions, SCALE)
    wide_q, rows, uk, uv = (x.double() for x in (q, cache, w_uk, w_uv))
    keys = torch.einsum("sl,ndl->nsd", rows[:, :L], uk).bfloat16().double()
    values = torch.einsum("sl,nvl->nsv", rows[:, :L], uv).bfloat16().double()
    keys = torch.cat([keys, rows[:, L:].expand(N, -1, -1)], -1)
    scores = torch.einsum("tnd,nsd->nts", wide_q, keys) * SCALE
    weights = scores.masked_fill(torch.arange(40) > positions[:, None], -torch.inf).softmax(-1)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), (weights @ values).transpose(0, 1), rtol=2**-8, atol=1e-4)
