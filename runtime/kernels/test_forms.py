"""The forms of one operator that live in different folders give one result."""

import pytest
import torch

from runtime.kernels.common.maths.mxfp4 import decode_mxfp4
from runtime.kernels.kda import bounded_gate, conv_update, kda_recurrent, kda_step
from runtime.kernels.kda.chunked import kda_chunked
from runtime.kernels.latent_moe.reference import experts, route
from runtime.kernels.mla import mla_absorbed, mla_absorbed_batched
from runtime.kernels.mla.expanded import mla_expanded
from runtime.kernels.moe_experts import moe_experts
from runtime.kernels.moe_experts.layout import pack_humming, unpack_humming
from runtime.kernels.moe_route import moe_route

TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6}
H, V, K = 3, 8, 16
SCALE = K**-0.5


def kda_tokens(tokens, dtype, saturated=False):
    """q, k, v, log_decay, beta of one sequence [T, H, *]."""
    torch.manual_seed(0)
    q, k, raw_g = (torch.randn(tokens, H, K, dtype=torch.float64) for _ in range(3))
    v, beta = torch.randn(tokens, H, V, dtype=torch.float64), torch.rand(tokens, H, dtype=torch.float64)
    gate = bounded_gate(raw_g + 1e3 * saturated, torch.randn(H).double(), torch.randn(H, K).double(), -5.0)
    return [x.to(dtype) for x in (q, k, v, gate, beta)]


@pytest.mark.parametrize("saturated", [False, True], ids=["random", "saturated"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_recurrent_chunked_and_step_by_step_kda_agree_over_odd_lengths(dtype, saturated):
    close = {"rtol": 0, "atol": TOLERANCE[dtype]}
    tokens, state = kda_tokens(301, dtype, saturated), torch.randn(H, V, K).to(dtype)
    o, states = kda_recurrent(state[None], *(x[None] for x in tokens), SCALE)
    running = state[None]
    for t in range(301):
        step_o, running = kda_step(running, *(x[None, t] for x in tokens), SCALE)
        assert torch.equal(step_o, o[:, t]) and torch.equal(running, states[:, t])
    for length in range(1, 302, 4):
        chunked_o, last = kda_chunked(state, *(x[:length] for x in tokens), SCALE)
        torch.testing.assert_close(chunked_o, o[0, :length], **close)
        torch.testing.assert_close(last, states[0, length - 1], **close)


@pytest.mark.parametrize("cut", [64 + residue for residue in range(16)])
def test_a_prompt_in_chunks_then_decode_then_verify_equals_one_recurrence(cut):
    tokens, state = kda_tokens(96, torch.float64), torch.zeros(H, V, K).double()
    o, states = kda_recurrent(state[None], *(x[None] for x in tokens), SCALE)
    prompt_o, state = kda_chunked(state, *(x[:cut] for x in tokens), SCALE)
    step_o, state = kda_step(state[None], *(x[None, cut] for x in tokens), SCALE)
    verify_o, verified = kda_recurrent(state, *(x[None, cut + 1 : cut + 5] for x in tokens), SCALE)
    torch.testing.assert_close(torch.cat([prompt_o, step_o, verify_o[0]]), o[0, : cut + 5])
    torch.testing.assert_close(verified[0], states[0, cut + 1 : cut + 5])


@pytest.mark.parametrize("accepted", range(1, 5))
def test_a_whole_kda_layer_resumes_from_any_accepted_length(accepted):
    """Convolution windows and states together: 5 tokens, verify 4, keep `accepted`, go on."""
    torch.manual_seed(2)
    channels = H * (2 * K + V)
    raw, weight = torch.randn(1, 15, channels).double(), torch.randn(channels, 4).double()
    gates = kda_tokens(15, torch.float64)[3:]

    def run(state, window, first, stop):
        y, windows = conv_update(raw[:, first:stop], window, weight)
        q, k, v = (part.unflatten(-1, (H, -1)) for part in y.split([H * K, H * K, H * V], dim=-1))
        o, states = kda_recurrent(state, q, k, v, *(x[None, first:stop] for x in gates), SCALE)
        return o, states, windows

    start = torch.zeros(1, H, V, K).double(), torch.zeros(1, 3, channels).double()
    straight, _, _ = run(*start, 0, 15)
    _, states, windows = run(*start, 0, 5)
    _, states, windows = run(states[:, -1], windows[:, -1], 5, 9)
    resumed, _, _ = run(states[:, accepted - 1], windows[:, accepted - 1], 5 + accepted, 15)
    assert torch.equal(resumed, straight[:, 5 + accepted :])


N, DN, DR, L, DV = 4, 16, 8, 32, 12


def mla_operands(tokens, keys, dtype):
    torch.manual_seed(0)
    q, cache = torch.randn(tokens, N, DN + DR), torch.randn(keys, L + DR)
    w_uk, w_uv = torch.randn(N, DN, L) / L**0.5, torch.randn(N, DV, L) / L**0.5
    return [x.to(dtype) for x in (q, cache, w_uk, w_uv)]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("keys, tokens", [(1, 1), (7, 7), (33, 5), (150, 150), (301, 64), (301, 1)])
def test_absorbed_and_expanded_mla_agree(keys, tokens, dtype):
    operands, positions = mla_operands(tokens, keys, dtype), torch.arange(keys - tokens, keys)
    absorbed = mla_absorbed(*operands, positions, 0.2)
    torch.testing.assert_close(
        mla_expanded(*operands, positions, 0.2), absorbed, rtol=0, atol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("steps", [1, 4])
def test_batched_mla_agrees_with_the_expanded_form_of_each_sequence(steps):
    lengths = torch.tensor([steps, 5, 64, 201])
    q, cache, w_uk, w_uv = mla_operands(4 * steps, 4 * 210, torch.float64)
    q, cache = q.unflatten(0, (4, steps)), cache.unflatten(0, (4, 210))
    batched = mla_absorbed_batched(q, cache, w_uk, w_uv, lengths, 0.2)
    for row, length in enumerate(lengths.tolist()):
        positions = torch.arange(length - steps, length)
        expanded = mla_expanded(q[row], cache[row, :length], w_uk, w_uv, positions, 0.2)
        torch.testing.assert_close(batched[row], expanded)


def test_absorbed_and_expanded_mla_agree_in_bf16_within_their_roundings():
    operands, positions = mla_operands(64, 64, torch.bfloat16), torch.arange(64)
    absorbed, expanded = (form(*operands, positions, 0.2).float() for form in (mla_absorbed, mla_expanded))
    torch.testing.assert_close(absorbed, expanded, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_routing_and_experts_by_group_are_those_of_latent_moe(dtype):
    torch.manual_seed(0)
    tokens, count, top_k, latent, width = 13, 12, 4, 64, 64
    logits, bias = torch.randn(tokens, count).to(dtype), (torch.randn(count) * 0.1).to(dtype)
    weights, ids = route(logits, bias, top_k, True, 2.0)
    routing = moe_route(logits, bias, top_k, scaling=2.0)
    assert torch.equal(routing.ids.long(), ids)
    torch.testing.assert_close(routing.weights, weights.float())

    def weight(rows, columns):
        codes = torch.randint(0, 256, (count, rows, columns // 2), dtype=torch.uint8)
        return codes, torch.randint(118, 123, (count, rows, columns // 32), dtype=torch.uint8)

    w13, w2 = weight(2 * width, latent), weight(latent, width)
    gate, up = decode_mxfp4(*w13).to(dtype).chunk(2, dim=1)
    x = torch.randn(tokens, latent).to(dtype)
    expected = experts(x, weights, ids, gate, up, decode_mxfp4(*w2).to(dtype), 4.0, 25.0)
    kept = unpack_humming(*pack_humming(*w13)), unpack_humming(*pack_humming(*w2))
    close = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(moe_experts(x, weights, ids, *kept), expected, **close)
