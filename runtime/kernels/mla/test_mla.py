"""Absorbed latent attention against a literal transcription; batching, padding and bits."""

import pytest
import torch

from runtime.kernels.mla import mla_absorbed, mla_absorbed_batched

N, DN, DR, L, DV = 3, 8, 4, 20, 6
SCALE = (DN + DR) ** -0.5


def make(tokens, keys, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    q, cache = torch.randn(tokens, N, DN + DR), torch.randn(keys, L + DR)
    w_uk, w_uv = torch.randn(N, DN, L), torch.randn(N, DV, L)
    return [x.to(dtype) for x in (q, cache, w_uk, w_uv)]


def literal(q, cache, w_uk, w_uv, positions):
    """One query, one head, one key at a time."""
    out = torch.zeros(len(q), N, DV, dtype=torch.float64)
    for t, position in enumerate(positions.tolist()):
        for n in range(N):
            latent_q = q[t, n, :DN] @ w_uk[n]
            scores = [SCALE * (latent_q @ row[:L] + q[t, n, DN:] @ row[L:]) for row in cache[: position + 1]]
            weights = torch.stack(scores).softmax(0)
            out[t, n] = w_uv[n] @ sum(w * row[:L] for w, row in zip(weights, cache, strict=False))
    return out


@pytest.mark.parametrize("positions", [[0], [6], [0, 1, 2, 3], [3, 4, 5, 6], [6, 0, 3]], ids=str)
def test_the_output_is_the_literal_attention(positions):
    positions = torch.tensor(positions)
    operands = make(len(positions), 7)
    torch.testing.assert_close(mla_absorbed(*operands, positions, SCALE), literal(*operands, positions))


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_batch_equals_each_sequence_by_itself_bit_for_bit(steps):
    """Ragged lengths, NaN in every padded cache row, one empty sequence: no bit changes."""
    lengths = torch.tensor([steps, 17, 130, 0, 401, 64])
    q = torch.randn(6, steps, N, DN + DR)
    _, _, w_uk, w_uv = make(1, 1, torch.float32)
    cache = torch.randn(6, 450, L + DR)
    for row, length in enumerate(lengths.tolist()):
        cache[row, length:] = torch.nan
    out = mla_absorbed_batched(q, cache, w_uk, w_uv, lengths, SCALE)
    for row, length in enumerate(lengths.tolist()):
        positions = torch.arange(length - steps, length)
        alone = mla_absorbed(q[row], cache[row, :length], w_uk, w_uv, positions, SCALE)
        assert torch.equal(out[row], alone), length
    assert torch.equal(out[3], torch.zeros(steps, N, DV))


def test_a_verify_step_equals_its_tokens_one_by_one_bit_for_bit():
    q, cache, w_uk, w_uv = make(4, 50, torch.float32)
    together = mla_absorbed_batched(q[None], cache[None], w_uk, w_uv, torch.tensor([50]), SCALE)[0]
    for t in range(4):
        length = torch.tensor([47 + t])
        one = mla_absorbed_batched(q[None, t : t + 1], cache[None], w_uk, w_uv, length, SCALE)
        assert torch.equal(one[0, 0], together[t])


def test_a_whole_sequence_equals_any_cut_of_it_bit_for_bit():
    q, cache, w_uk, w_uv = make(90, 90, torch.float32)
    positions = torch.arange(90)
    whole = mla_absorbed(q, cache, w_uk, w_uv, positions, SCALE)
    for cut in [1, 15, 16, 17, 64, 89]:
        head = mla_absorbed(q[:cut], cache[:cut], w_uk, w_uv, positions[:cut], SCALE)
        tail = mla_absorbed(q[cut:], cache, w_uk, w_uv, positions[cut:], SCALE)
        assert torch.equal(torch.cat([head, tail]), whole)


def test_later_rows_do_not_leak_even_as_nan():
    q, cache, w_uk, w_uv = make(2, 9)
    positions = torch.tensor([3, 5])
    expected = mla_absorbed(q, cache, w_uk, w_uv, positions, SCALE)
    cache[6:] = torch.nan
    assert torch.equal(mla_absorbed(q, cache, w_uk, w_uv, positions, SCALE), expected)


def test_a_query_that_sees_nothing_gets_zeros():
    q, cache, w_uk, w_uv = make(2, 4)
    out = mla_absorbed(q, cache, w_uk, w_uv, torch.tensor([-1, 2]), SCALE)
    assert torch.equal(out[0], torch.zeros(N, DV).double()) and out[1].abs().min() > 0
    assert mla_absorbed(q[:0], cache[:0], w_uk, w_uv, torch.arange(0), SCALE).shape == (0, N, DV)


def test_huge_scores_do_not_overflow():
    q, cache, w_uk, w_uv = make(3, 3, torch.float32)
    assert mla_absorbed(q * 1e6, cache * 1e6, w_uk, w_uv, torch.arange(3), SCALE).isfinite().all()


def test_bf16_rounds_absorbed_query_latent_output_and_value():
    q, cache, w_uk, w_uv = make(5, 40, torch.bfloat16)
    positions = torch.arange(35, 40)
    out = mla_absorbed(q, cache, w_uk, w_uv, positions, SCALE)
    wide_q, rows, uk, uv = (x.double() for x in (q, cache, w_uk, w_uv))
    latent_q = torch.einsum("tnd,ndl->tnl", wide_q[..., :DN], uk).bfloat16().double()
    scores = torch.einsum("tnk,sk->tns", torch.cat([latent_q, wide_q[..., DN:]], -1), rows) * SCALE
    visible = torch.arange(40) <= positions[:, None]
    weights = scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1)
    latent = (weights @ rows[:, :L]).bfloat16().double()
    expected = torch.einsum("tnl,nvl->tnv", latent, uv)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), expected, rtol=2**-8, atol=2e-3)
    # Without the inner roundings the result is further away than one rounding of the output explains.
    assert (out.double() - literal(wide_q, rows, uk, uv, positions)).abs().max() < 0.1
