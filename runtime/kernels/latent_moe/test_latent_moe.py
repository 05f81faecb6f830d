"""Router rules, expert sum against a literal transcription, and batch invariance."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kernels.latent_moe import experts, gated_mlp, route

E, R, I = 6, 12, 9


def weights(dtype=torch.float64):
    torch.manual_seed(0)
    w1, w3, w2 = torch.randn(E, I, R), torch.randn(E, I, R), torch.randn(E, R, I)
    return [w.to(dtype) for w in (w1, w3, w2)]


def literal_mlp(x, w_gate, w_up, w_down):
    gate, up = w_gate @ x, w_up @ x
    return w_down @ (4 * torch.tanh(gate / 4) / (1 + torch.exp(-gate)) * 25 * torch.tanh(up / 25))


# Router


@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.5, 2.0]), min_size=3, max_size=20),
    top_k=st.integers(1, 3),
    seed=st.integers(0, 3),
)
def test_experts_are_ordered_by_biased_score_and_ties_go_to_the_lower_id(logits, top_k, seed):
    scores = torch.tensor(logits, dtype=torch.float32)
    bias = torch.tensor([0.0, 0.25, -0.5])[
        torch.randint(3, scores.shape, generator=torch.Generator().manual_seed(seed))
    ]
    biased = (torch.sigmoid(scores) + bias).tolist()
    expected = sorted(range(len(logits)), key=lambda expert: (-biased[expert], expert))[:top_k]
    _, ids = route(scores[None], bias, top_k, True, 1.0)
    assert ids[0].tolist() == expected


def test_equal_logits_choose_the_first_experts():
    topk_weights, ids = route(torch.zeros(2, 896), torch.zeros(896), 16, True, 1.0)
    assert ids.tolist() == [list(range(16))] * 2
    assert torch.equal(topk_weights, torch.full((2, 16), 1 / 16))


def test_the_bias_chooses_but_does_not_weigh():
    logits, bias = torch.tensor([[2.0, 1.0, 0.0, -1.0]]), torch.tensor([0.0, 0.0, 0.0, 5.0])
    topk_weights, ids = route(logits, bias, 2, False, 1.0)
    assert ids.tolist() == [[3, 0]]
    assert topk_weights[0].tolist() == pytest.approx([1 / (1 + math.e), 1 / (1 + math.exp(-2))])


@pytest.mark.parametrize("scaling", [1.0, 2.5])
def test_renormalised_weights_sum_to_the_scaling_factor(scaling):
    topk_weights, _ = route(torch.randn(50, 64), torch.randn(64), 8, True, scaling)
    assert topk_weights.dtype == torch.float32
    torch.testing.assert_close(topk_weights.sum(-1), torch.full((50,), scaling))


def test_unnormalised_weights_are_the_scaled_scores():
    logits = torch.randn(5, 7, dtype=torch.float64)
    topk_weights, ids = route(logits, torch.zeros(7).double(), 3, False, 2.0)
    torch.testing.assert_close(topk_weights, 2.0 / (1 + torch.exp(-logits.gather(1, ids))))


def test_scores_that_all_vanish_give_zero_weights_not_nan():
    topk_weights, _ = route(torch.full((1, 8), -300.0), torch.zeros(8), 4, True, 1.0)
    assert topk_weights.tolist() == [[0.0] * 4]


@pytest.mark.parametrize("top_k", [0, 5])
def test_a_top_k_that_does_not_fit_is_refused(top_k):
    with pytest.raises(ValueError, match="the router has 4 experts"):
        route(torch.zeros(1, 4), torch.zeros(4), top_k, True, 1.0)


# Experts


@pytest.mark.parametrize("top_k", [1, 3, 6])
def test_the_sum_over_experts_is_the_literal_one(top_k):
    w1, w3, w2 = weights()
    x, logits = torch.randn(10, R).double(), torch.randn(10, E).double()
    topk_weights, ids = route(logits, torch.zeros(E).double(), top_k, True, 1.0)
    out = experts(x, topk_weights, ids, w1, w3, w2, 4.0, 25.0)
    for t in range(10):
        rows = [
            w * literal_mlp(x[t], w1[e], w3[e], w2[e]) for w, e in zip(topk_weights[t], ids[t], strict=True)
        ]
        torch.testing.assert_close(out[t], sum(rows))


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(st.integers(0, 79), min_size=1, max_size=80, unique=True))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_token_does_not_depend_on_the_other_tokens(dtype, rows):
    w1, w3, w2 = weights(dtype)
    x = torch.randn(80, R).to(dtype)
    topk_weights, ids = route(torch.randn(80, E), torch.zeros(E), 3, True, 1.0)
    whole = experts(x, topk_weights, ids, w1, w3, w2, 4.0, 25.0)
    part = experts(x[rows], topk_weights[rows], ids[rows], w1, w3, w2, 4.0, 25.0)
    assert torch.equal(part, whole[rows])


def test_experts_that_nobody_chose_do_not_leak():
    w1, w3, w2 = weights()
    for w in (w1, w3, w2):
        w[4] = torch.nan
    ids = torch.tensor([[0, 1], [5, 3]])
    assert (
        experts(torch.randn(2, R).double(), torch.rand(2, 2).double(), ids, w1, w3, w2, 4.0, 25.0)
        .isfinite()
        .all()
    )


def test_no_tokens_give_no_rows():
    out = experts(
        torch.zeros(0, R),
        torch.zeros(0, 2),
        torch.zeros(0, 2, dtype=torch.long),
        *weights(torch.float32),
        4.0,
        25.0,
    )
    assert out.shape == (0, R)


def test_bf16_rounds_products_activation_rows_and_sum_and_accumulates_in_fp32():
    w1, w3, w2 = weights(torch.bfloat16)
    x, topk_weights = torch.randn(4, R).bfloat16(), torch.rand(4, 3)
    ids = torch.tensor([[0, 1, 2], [2, 1, 0], [5, 4, 3], [0, 2, 4]])
    out = experts(x, topk_weights, ids, w1, w3, w2, 4.0, 25.0)
    for t in range(4):
        total = torch.zeros(R)
        for slot, expert in enumerate(ids[t].tolist()):
            gate, up = ((w[expert].double() @ x[t].double()).bfloat16().double() for w in (w1, w3))
            hidden = 4 * torch.tanh(gate / 4) * torch.sigmoid(gate) * 25 * torch.tanh(up / 25)
            row = (w2[expert].double() @ hidden.bfloat16().double()).bfloat16()
            total += topk_weights[t, slot] * row.float()
        torch.testing.assert_close(out[t], total.bfloat16(), rtol=2**-7, atol=1e-2)


def test_a_gated_mlp_is_the_literal_one_over_any_leading_axes():
    w1, w3, w2 = weights()
    x = torch.randn(2, 3, R).double()
    out = gated_mlp(x, w1[0], w3[0], w2[0], 4.0, 25.0)
    for a in range(2):
        for b in range(3):
            torch.testing.assert_close(out[a, b], literal_mlp(x[a, b], w1[0], w3[0], w2[0]))
