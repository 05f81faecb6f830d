"""KDA token by token: each function against a literal transcription, and state handling bit by bit."""

import math

import pytest
import torch
from torch.nn import functional as F

from runtime.kernels.kda import bounded_gate, conv_update, gated_norm, kda_recurrent, kda_step

N, H, V, K = 3, 2, 6, 10
SCALE = K**-0.5


def make(tokens, dtype=torch.float64, seed=0):
    """State, q, k, v, log_decay, beta of `tokens` tokens: what `kda_recurrent` takes, but for the scale."""
    torch.manual_seed(seed)
    state = torch.randn(N, H, V, K, dtype=torch.float64)
    q, k, log_decay = (torch.randn(N, tokens, H, K, dtype=torch.float64) for _ in range(3))
    v = torch.randn(N, tokens, H, V, dtype=torch.float64)
    beta = torch.rand(N, tokens, H, dtype=torch.float64)
    return [x.to(dtype) for x in (state, q, k, v, -5 * torch.sigmoid(log_decay), beta)]


def literal_token(state, q, k, v, log_decay, beta):
    """One head of one token with explicit sums: state [V, K]."""
    q = q / math.sqrt(sum(x.item() ** 2 for x in q) + 1e-6) * SCALE
    k = k / math.sqrt(sum(x.item() ** 2 for x in k) + 1e-6)
    state = state @ torch.diag(torch.exp(log_decay))
    state = state + torch.outer(beta * (v - state @ k), k)
    return state @ q, state


def test_one_token_is_the_literal_recurrence():
    state, q, k, v, log_decay, beta = make(1)
    o, new_state = kda_step(state, q[:, 0], k[:, 0], v[:, 0], log_decay[:, 0], beta[:, 0], SCALE)
    for n in range(N):
        for h in range(H):
            operands = (x[n, 0, h] for x in (q, k, v, log_decay, beta))
            expected_o, expected_state = literal_token(state[n, h], *operands)
            torch.testing.assert_close(o[n, h], expected_o)
            torch.testing.assert_close(new_state[n, h], expected_state)


def test_the_update_removes_the_old_value_of_a_key():
    """With no decay and beta 1, reading with the key just written returns its value exactly."""
    state, _, k, v, log_decay, _ = make(1)
    k = F.normalize(k, dim=-1) * 1e4  # so that the 1e-6 under the root does not count
    o, _ = kda_step(state, k[:, 0], k[:, 0], v[:, 0], 0 * log_decay[:, 0], torch.ones(N, H).double(), 1.0)
    torch.testing.assert_close(o, v[:, 0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_verify_form_is_bit_equal_to_single_steps_for_every_accepted_length(dtype):
    state, *tokens = make(8, dtype)
    o, states = kda_recurrent(state, *tokens, SCALE)
    running = state
    for accepted in range(1, 9):
        step_o, running = kda_step(running, *(x[:, accepted - 1] for x in tokens), SCALE)
        assert torch.equal(o[:, accepted - 1], step_o)
        assert torch.equal(states[:, accepted - 1], running)


@pytest.mark.parametrize("accepted", range(1, 5))
def test_decoding_goes_on_from_the_state_of_the_accepted_length(accepted):
    state, *tokens = make(9)
    straight, _ = kda_recurrent(state, *tokens, SCALE)
    _, states = kda_recurrent(state, *(x[:, :4] for x in tokens), SCALE)
    resumed, _ = kda_recurrent(states[:, accepted - 1], *(x[:, accepted:] for x in tokens), SCALE)
    assert torch.equal(resumed, straight[:, accepted:])


def test_nothing_is_updated_in_place():
    arguments = make(3)
    before = [x.clone() for x in arguments]
    kda_recurrent(*arguments, SCALE)
    kda_step(arguments[0], *(x[:, 0] for x in arguments[1:]), SCALE)
    assert all(torch.equal(x, y) for x, y in zip(arguments, before, strict=True))


def test_no_tokens_give_no_outputs():
    o, states = kda_recurrent(*make(0), SCALE)
    assert o.shape == (N, 0, H, V) and states.shape == (N, 0, H, V, K)


def test_a_sequence_does_not_depend_on_the_batch():
    arguments = make(4, torch.float32)
    o, states = kda_recurrent(*arguments, SCALE)
    for n in range(N):
        alone_o, alone_states = kda_recurrent(*(x[n : n + 1] for x in arguments), SCALE)
        assert torch.equal(alone_o[0], o[n]) and torch.equal(alone_states[0], states[n])


def test_bf16_inputs_with_an_fp32_state_are_not_rounded_further():
    state, *tokens = make(20, torch.bfloat16)
    o, states = kda_recurrent(state.float(), *tokens, SCALE)
    exact_o, exact_states = kda_recurrent(state.double(), *(x.double() for x in tokens), SCALE)
    assert o.dtype == states.dtype == torch.float32
    torch.testing.assert_close(o.double(), exact_o, rtol=0, atol=1e-6)
    torch.testing.assert_close(states.double(), exact_states, rtol=0, atol=1e-6)


def test_a_bf16_state_is_rounded_where_it_is_stored_only():
    state, *tokens = make(4, torch.bfloat16)
    o, states = kda_recurrent(state, *tokens, SCALE)
    wide_o, wide_states = kda_recurrent(state.float(), *tokens, SCALE)
    assert states.dtype == torch.bfloat16 and o.dtype == torch.float32
    assert torch.equal(o, wide_o) and torch.equal(states, wide_states.bfloat16())


# Convolution


def test_the_convolution_is_causal_depthwise_with_the_last_tap_on_the_current_input():
    torch.manual_seed(0)
    x, weight = torch.randn(2, 11, 7).double(), torch.randn(7, 4).double()
    y, _ = conv_update(x, torch.zeros(2, 3, 7).double(), weight)
    padded = F.pad(x.transpose(1, 2), (3, 0))
    expected = F.silu(F.conv1d(padded, weight[:, None], groups=7)).transpose(1, 2)
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_window_carried_over_any_cut_gives_the_same_bits(width, dtype):
    torch.manual_seed(1)
    x, weight = torch.randn(2, 18, 32).to(dtype), torch.randn(32, width)
    start = torch.zeros(2, width - 1, 32, dtype=dtype)
    whole, windows = conv_update(x, start, weight)
    assert whole.dtype == torch.float32 and windows.dtype == dtype
    for cut in range(1, 18):
        _, head_windows = conv_update(x[:, :cut], start, weight)
        tail, tail_windows = conv_update(x[:, cut:], head_windows[:, -1], weight)
        assert torch.equal(tail, whole[:, cut:])
        assert torch.equal(tail_windows, windows[:, cut:])


@pytest.mark.parametrize("accepted", range(1, 6))
def test_the_window_of_each_accepted_length_holds_the_newest_raw_inputs(accepted):
    x, window = torch.randn(3, 5, 4), torch.randn(3, 3, 4)
    _, windows = conv_update(x, window, torch.randn(4, 4))
    history = torch.cat([window, x], dim=1)
    assert torch.equal(windows[:, accepted - 1], history[:, accepted : accepted + 3])


def test_windows_own_their_memory():
    x, window = torch.randn(1, 3, 2), torch.randn(1, 3, 2)
    _, windows = conv_update(x, window, torch.randn(2, 4))
    expected = windows.clone()
    windows[:, 0] = 0
    assert torch.equal(windows[:, 1:], expected[:, 1:])


def test_an_fp32_input_is_rounded_to_the_window_dtype_before_any_tap():
    x, weight, window = torch.randn(1, 6, 3), torch.randn(3, 4), torch.zeros(1, 3, 3, dtype=torch.bfloat16)
    assert torch.equal(conv_update(x, window, weight)[0], conv_update(x.bfloat16(), window, weight)[0])


# Gates


def test_the_bounded_gate_is_the_formula():
    torch.manual_seed(0)
    raw, slope, bias = torch.randn(4, 3, H, K).double(), torch.randn(H).double(), torch.randn(H, K).double()
    result = bounded_gate(raw, slope, bias, -5.0)
    for h in range(H):
        expected = -5 / (1 + torch.exp(-math.exp(slope[h]) * (raw[..., h, :] + bias[h])))
        torch.testing.assert_close(result[..., h, :], expected)


def test_the_bounded_gate_keeps_its_bounds_far_out():
    raw = torch.tensor([-1e9, -1e3, 0.0, 1e3, 1e9]).reshape(1, 1, 5).bfloat16()
    result = bounded_gate(raw, torch.tensor([3.0]), torch.zeros(1, 5), -5.0)
    assert result.dtype == torch.float32
    assert result.flatten().tolist() == [0.0, 0.0, -2.5, -5.0, -5.0]


def test_without_a_bound_the_gate_is_the_softplus_one():
    raw = torch.tensor([-50.0, -1.0, 0.0, 5.0, 19.0, 21.0, 500.0]).double().reshape(1, 7)
    result = bounded_gate(raw, torch.tensor([0.5]).double(), torch.full((1, 7), 0.25).double(), None)
    expected = [-math.exp(0.5) * math.log1p(math.exp(x + 0.25)) for x in raw[0].tolist()[:-1]]
    assert result[0].tolist()[:-1] == pytest.approx(expected, rel=1e-9)
    assert result[0, -1].item() == pytest.approx(-math.exp(0.5) * 500.25)


@pytest.mark.parametrize("bound", [0.0, 5.0, math.nan])
def test_a_bound_that_is_not_negative_is_refused(bound):
    with pytest.raises(ValueError, match="lower_bound must be negative"):
        bounded_gate(torch.zeros(1, H, K), torch.zeros(H), torch.zeros(H, K), bound)


def test_the_gated_norm_is_norm_then_weight_then_sigmoid_gate():
    o, weight, gate = torch.randn(4, H, V).double(), torch.randn(V).double(), torch.randn(4, H, V).double()
    expected = o / (o.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight / (1 + torch.exp(-gate))
    torch.testing.assert_close(gated_norm(o, weight, gate, 1e-5), expected)


def test_the_gated_norm_rounds_once_to_the_gate_dtype():
    o, weight, gate = torch.randn(4, H, V), torch.randn(V), torch.randn(4, H, V).bfloat16()
    result = gated_norm(o, weight, gate, 1e-5)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, gated_norm(o, weight, gate.float(), 1e-5).bfloat16())
