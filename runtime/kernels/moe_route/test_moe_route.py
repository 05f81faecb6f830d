"""Routing on the CPU: the reference against literal loops, and its bad cases."""

import math

import pytest
import torch

from runtime.kernels.common.launch.routing import GROUP_TOKENS, empty_routing, group_pairs
from runtime.kernels.moe_route import moe_route
from runtime.kernels.moe_route.spec import MoeRouteSpec, check_bias, unsupported

T, E, K = 11, 20, 4


def literal_choice(logits, bias, top_k):
    """Ids and weights of one token by sorting (score + bias, lower id first)."""
    scores = [1 / (1 + math.exp(-x)) for x in logits.tolist()]
    order = sorted(range(len(scores)), key=lambda e: (-(scores[e] + bias[e].item()), e))[:top_k]
    total = sum(scores[e] for e in order)
    return order, [scores[e] / total for e in order]


def groups_of(routing):
    """The groups in use as (expert, pairs)."""
    count = int(routing.count)
    tables = zip(routing.experts[:count].tolist(), routing.rows[:count].tolist(), strict=True)
    return [(expert, [pair for pair in rows if pair >= 0]) for expert, rows in tables]


def test_choices_are_those_of_a_sort():
    logits, bias = torch.randn(T, E, dtype=torch.float64), torch.randn(E, dtype=torch.float64) * 0.1
    routing = moe_route(logits, bias, K)
    for token in range(T):
        ids, weights = literal_choice(logits[token], bias, K)
        assert routing.ids[token].tolist() == ids
        torch.testing.assert_close(routing.weights[token].double(), torch.tensor(weights).double())


def test_every_pair_is_in_one_group_of_its_expert_in_order():
    routing = moe_route(torch.randn(T, E), torch.zeros(E), K)
    groups = groups_of(routing)
    assert sorted(pair for _, pairs in groups for pair in pairs) == list(range(T * K))
    assert [expert for expert, _ in groups] == sorted(expert for expert, _ in groups)
    for expert, pairs in groups:
        assert pairs == sorted(pairs) and 1 <= len(pairs) <= GROUP_TOKENS
        assert {int(routing.ids.flatten()[pair]) for pair in pairs} == {expert}


def test_only_the_last_group_of_an_expert_has_room():
    ids = torch.zeros(19, 1, dtype=torch.int32)
    groups = groups_of(group_pairs(ids, torch.ones(19, 1), first=0, local=3))
    assert [len(pairs) for _, pairs in groups] == [8, 8, 3]


def test_room_names_a_pair_of_the_group():
    routing = group_pairs(torch.tensor([[5, 2], [2, 5]]), torch.ones(2, 2), first=0, local=8)
    for rows in routing.rows[: int(routing.count)].tolist():
        members = [pair for pair in rows if pair >= 0]
        assert {-1 - pair for pair in rows if pair < 0} <= set(members)


def test_experts_of_other_ranks_and_ids_out_of_range_are_in_no_group():
    ids = torch.tensor([[0, 7, -1, 99], [4, 5, 8, -2147483648]])
    groups = groups_of(group_pairs(ids, torch.ones(2, 4), first=4, local=4))
    assert groups == [(0, [4]), (1, [5]), (3, [1])]


def test_a_padding_row_chooses_nobody_and_changes_no_other_row():
    logits, bias = torch.randn(T, E), torch.randn(E)
    padding = torch.zeros(T, dtype=torch.bool)
    padding[[0, 5]] = True
    whole, masked = moe_route(logits, bias, K), moe_route(logits, bias, K, padding=padding)
    assert (masked.ids[padding] == -1).all() and (masked.weights[padding] == 0).all()
    assert torch.equal(masked.ids[~padding], whole.ids[~padding])
    members = {pair // K for _, pairs in groups_of(masked) for pair in pairs}
    assert members == set(range(T)) - {0, 5}


def test_only_padding_has_no_group():
    routing = moe_route(torch.randn(3, E), torch.zeros(E), K, padding=torch.ones(3, dtype=torch.bool))
    assert int(routing.count) == 0


def test_nan_is_chosen_first_and_stays_in_its_row():
    logits = torch.randn(2, E)
    logits[0, 7] = float("nan")
    routing = moe_route(logits, torch.zeros(E), K)
    assert int(routing.ids[0, 0]) == 7 and routing.weights[0].isnan().all()
    assert routing.weights[1].isfinite().all()


def test_infinite_logits_have_scores_one_and_zero():
    logits = torch.zeros(1, E)
    logits[0, 3], logits[0, 4] = float("inf"), float("-inf")
    routing = moe_route(logits, torch.zeros(E), E)
    assert int(routing.ids[0, 0]) == 3 and int(routing.ids[0, -1]) == 4
    assert float(routing.weights[0, -1]) == 0.0


def test_zero_tokens_have_no_group():
    assert int(moe_route(torch.zeros(0, E), torch.zeros(E), K).count) == 0


def test_equal_scores_go_to_the_lower_expert():
    assert moe_route(torch.zeros(1, E), torch.zeros(E), K).ids.tolist() == [[0, 1, 2, 3]]


def test_buffers_for_fewer_tokens_are_refused():
    with pytest.raises(ValueError, match="hold 2 tokens, the step has 3"):
        empty_routing(2, K, "cpu", first=0, local=E).of(3)


def test_every_reason_is_given_at_once():
    reasons = unsupported(MoeRouteSpec(experts=2000, top_k=40, first=1990, local=20), "sm_80")
    assert len(reasons) == 4
    assert unsupported(MoeRouteSpec(), "sm_90a") == []


def test_a_wrong_bias_is_named():
    with pytest.raises(ValueError, match="correction_bias must be of shape 896"):
        check_bias(MoeRouteSpec(), torch.zeros(895))
