"""Routing and routed experts together on a GPU: against the definition of LatentMoE, and beside Humming."""

import pytest
import torch

from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.common.workshop.expert_sets import random_steps, random_weights
from runtime.kernels.common.workshop.humming_peer import HummingExperts, humming_installed, stock_topk
from runtime.kernels.common.workshop.testing import relative_error, replayed_bits
from runtime.kernels.moe_experts.dispatch import MoeExperts
from runtime.kernels.moe_experts.layout import unpack_humming
from runtime.kernels.moe_experts.reference import moe_experts
from runtime.kernels.moe_experts.spec import MoeExpertsSpec
from runtime.kernels.moe_route.dispatch import MoeRoute
from runtime.kernels.moe_route.spec import MoeRouteSpec

pytestmark = pytest.mark.gpu
EXPERTS = 64


def site(settled=False, experts=EXPERTS):
    weights = random_weights(384, experts)
    spec = MoeExpertsSpec(experts=experts, overlap=Overlap(settled=settled))
    route = MoeRoute(MoeRouteSpec(experts), torch.zeros(experts, device="cuda"), provider="cute")
    return weights, route, MoeExperts(spec, *weights, provider="cute")


@pytest.mark.parametrize("tokens", [1, 8, 64])
def test_our_error_is_at_most_one_and_a_half_times_stocks(tokens):
    if not humming_installed():
        pytest.skip("Humming is not installed")
    weights, route, op = site()
    (step,) = random_steps(tokens, 0.0, 1, EXPERTS)
    routing = route(step.logits, route.buffers(tokens))
    out = op(step.x, routing, op.buffers(tokens), step.out)
    stock = HummingExperts(3584, 384, *weights)
    topk = stock_topk(step.logits, route.bias, 16)
    assert torch.equal(topk[1].sort(-1).values.int(), routing.ids.sort(-1).values)
    theirs = stock(step.x, *topk, stock.buffers(tokens, 16), torch.empty_like(out))
    checkpoint = unpack_humming(*weights[:2]), unpack_humming(*weights[2:])
    exact = moe_experts(step.x.double(), routing.weights, routing.ids, *checkpoint)
    assert relative_error(out, exact) <= 1.5 * relative_error(theirs, exact)


@pytest.mark.parametrize("tokens", [1, 8, 64])
def test_a_chain_replays_with_the_same_bits(tokens):
    weights, route, op = site()
    (step,) = random_steps(tokens, 0.0, 1, EXPERTS)
    buffers, space = route.buffers(tokens), op.buffers(tokens)

    def run():
        op(step.x, route(step.logits, buffers), space, step.out)

    replayed_bits(run, lambda: step.out.fill_(float("nan")), [step.out], replays=60)
    routing = route(step.logits, buffers)
    exact = moe_experts(
        step.x.double(),
        routing.weights,
        routing.ids,
        unpack_humming(*weights[:2]),
        unpack_humming(*weights[2:]),
    )
    assert relative_error(step.out, exact) < 1e-2
