"""Chunked KDA against a literal recurrence, at every cut, and with decays that overflow a naive form."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kernels.kda.chunked import kda_chunked

H, V, K, LONGEST = 2, 6, 10, 300
SCALE = K**-0.5
TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6}
DECAYS = {
    "at the lower bound": lambda x: torch.full_like(x, -5.0),
    "none": torch.zeros_like,
    "jumping": lambda x: torch.where(x > 0, -5.0, -1e-4).to(x.dtype),
    "per channel": lambda x: torch.linspace(-5, 0, x.shape[-1], dtype=x.dtype).expand_as(x),
    "below any bound": lambda x: torch.full_like(x, -80.0),
}


def make(tokens, dtype=torch.float64, decay=lambda x: -5 * torch.sigmoid(x)):
    """State, q, k, v, log_decay, beta of one sequence: the arguments of `kda_chunked` but for the scale."""
    torch.manual_seed(0)
    state = torch.randn(H, V, K, dtype=torch.float64)
    q, k, gate = (torch.randn(LONGEST, H, K, dtype=torch.float64) for _ in range(3))
    v, beta = torch.randn(LONGEST, H, V, dtype=torch.float64), torch.rand(LONGEST, H, dtype=torch.float64)
    return [state.to(dtype), *(x[:tokens].to(dtype) for x in (q, k, v, decay(gate), beta))]


def literal(state, q, k, v, log_decay, beta):
    """Outputs and the state after every token, one head at a time, in FP64."""
    state, q, k, v, log_decay, beta = (x.double() for x in (state, q, k, v, log_decay, beta))
    outputs, states = torch.zeros(v.shape).double(), torch.zeros(len(q), *state.shape).double()
    for h in range(state.shape[0]):
        running = state[h]
        for t in range(len(q)):
            key = k[t, h] / (k[t, h] @ k[t, h] + 1e-6).sqrt()
            running = running @ torch.diag(log_decay[t, h].exp())
            running = running + beta[t, h] * torch.outer(v[t, h] - running @ key, key)
            outputs[t, h] = running @ q[t, h] / (q[t, h] @ q[t, h] + 1e-6).sqrt() * SCALE
            states[t, h] = running
    return outputs, states


@pytest.fixture(scope="module")
def recurrence():
    """The literal result for LONGEST tokens; a shorter prompt is its beginning."""
    return literal(*make(LONGEST))


def check(result, expected_o, expected_state, tolerance):
    o, state = result
    torch.testing.assert_close(o.double(), expected_o, rtol=0, atol=tolerance)
    torch.testing.assert_close(state.double(), expected_state, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_every_odd_length_up_to_300_equals_the_recurrence(recurrence, dtype):
    outputs, states = recurrence
    for tokens in range(1, LONGEST + 1, 2):
        result = kda_chunked(*make(tokens, dtype), SCALE)
        check(result, outputs[:tokens], states[tokens - 1], TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("cut", [32 + residue for residue in range(16)])
def test_the_state_carries_over_a_cut_at_every_position_mod_16(recurrence, cut, dtype):
    outputs, states = recurrence
    state, *tokens = make(101, dtype)
    first_o, middle = kda_chunked(state, *(x[:cut] for x in tokens), SCALE)
    second_o, last = kda_chunked(middle, *(x[cut:] for x in tokens), SCALE)
    torch.testing.assert_close(middle.double(), states[cut - 1], rtol=0, atol=TOLERANCE[dtype])
    check((torch.cat([first_o, second_o]), last), outputs[:101], states[100], TOLERANCE[dtype])


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.lists(st.integers(0, LONGEST), max_size=5).map(sorted),
    chunk_size=st.sampled_from([1, 3, 16, 17, 32, 64, 100, 512]),
)
def test_any_cuts_and_any_chunk_size_equal_the_recurrence(recurrence, cuts, chunk_size):
    outputs, states = recurrence
    state, *tokens = make(LONGEST)
    parts = []
    for start, stop in zip([0, *cuts], [*cuts, LONGEST], strict=True):
        o, state = kda_chunked(state, *(x[start:stop] for x in tokens), SCALE, chunk_size)
        parts.append(o)
    check((torch.cat(parts), state), outputs, states[-1], TOLERANCE[torch.float64])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("chunk_size", [16, 64, 256])
@pytest.mark.parametrize("decay", DECAYS.values(), ids=DECAYS)
def test_no_decay_overflows_or_loses_accuracy(decay, chunk_size, dtype):
    arguments = make(257, dtype, decay)
    outputs, states = literal(*arguments)
    check(kda_chunked(*arguments, SCALE, chunk_size), outputs, states[-1], TOLERANCE[dtype])


def test_the_saturated_case_is_one_that_the_split_form_cannot_hold():
    """64 tokens at -5 reach e^320: beyond FP32; two such chunks are beyond FP64."""
    total = make(64, torch.float32, DECAYS["at the lower bound"])[4].cumsum(0)
    assert torch.exp(-total).isinf().any()
    assert math.log(torch.finfo(torch.float64).max) * 0.9 < 5 * 2 * 64


def test_equal_keys_in_a_row_stay_accurate():
    """Identical keys with beta 1 give the worst triangular system: every entry is one."""
    state, q, k, v, log_decay, beta = make(200, torch.float32)
    arguments = state, q, k[:1].expand_as(k), v, 0 * log_decay, torch.ones_like(beta)
    outputs, states = literal(*arguments)
    check(kda_chunked(*arguments, SCALE), outputs, states[-1], 2e-5)


def test_no_tokens_leave_the_state_alone():
    arguments = make(0, torch.float32)
    o, state = kda_chunked(*arguments, SCALE)
    assert o.shape == (0, H, V) and torch.equal(state, arguments[0])


def test_arguments_are_not_modified():
    arguments = make(70)
    before = [x.clone() for x in arguments]
    kda_chunked(*arguments, SCALE)
    assert all(torch.equal(x, y) for x, y in zip(arguments, before, strict=True))


def test_bf16_inputs_and_state_round_only_the_final_state():
    arguments = make(100, torch.bfloat16)
    outputs, states = literal(*arguments)
    o, state = kda_chunked(*arguments, SCALE)
    assert o.dtype == torch.float32 and state.dtype == torch.bfloat16
    torch.testing.assert_close(o.double(), outputs, rtol=0, atol=2e-6)
    torch.testing.assert_close(state.double(), states[-1], rtol=2**-8, atol=1e-6)
