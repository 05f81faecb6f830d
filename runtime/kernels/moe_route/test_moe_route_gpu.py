"""The routing kernels on a GPU: choices against FP64, groups against the definition, in graphs, under jitter."""

import pytest
import torch

from runtime.kernels.common.launch.dispatch import strict
from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.common.launch.routing import group_pairs
from runtime.kernels.common.workshop.testing import Guarded, replayed_bits
from runtime.kernels.moe_route.dispatch import MoeRoute
from runtime.kernels.moe_route.reference import moe_route
from runtime.kernels.moe_route.spec import MoeRouteSpec

pytestmark = pytest.mark.gpu
EPS = 1e-6  # of a biased score: above it, the chosen set equals FP64's


class Step:
    """Logits of some tokens and where the kernel writes, with guards."""

    def __init__(self, tokens, experts=896, top_k=16, provider="cute", padding=(), **site):
        self.guarded = Guarded()
        self.bias = torch.randn(experts, device="cuda") * 0.05
        self.logits = self.guarded("logits", torch.randn(tokens, experts, device="cuda"))
        self.padding = torch.zeros(tokens, dtype=torch.bool, device="cuda") if padding else None
        if padding:
            self.padding[list(padding)] = True
        self.spec = MoeRouteSpec(experts, top_k, **site)
        with strict():
            self.op = MoeRoute(self.spec, self.bias, provider=provider)
        self.routing = self.op.buffers(max(tokens, 1))
        self.forget()

    def forget(self):
        for buffer in (self.routing.ids, self.routing.experts, self.routing.rows, self.routing.count):
            buffer.fill_(-77)
        self.routing.weights.fill_(float("nan"))

    def run(self):
        return self.op(self.logits, self.routing, self.padding)

    def check(self):
        routing = self.run()
        self.guarded.check()
        spec = self.spec
        exact = moe_route(
            self.logits.double(),
            self.bias.double(),
            spec.top_k,
            renormalize=spec.renormalize,
            scaling=spec.scaling,
            padding=self.padding,
        )
        biased = torch.sigmoid(self.logits.double()) + self.bias.double()
        ranked = biased.sort(-1, descending=True).values
        certain = ranked[:, spec.top_k - 1] - ranked[:, min(spec.top_k, spec.experts - 1)] > EPS
        mine, theirs = routing.ids.sort(-1).values, exact.ids.sort(-1).values
        assert torch.equal(mine[certain], theirs[certain])
        present = self.padding.logical_not() if self.padding is not None else certain | True
        chosen = torch.sigmoid(self.logits.double()).gather(1, routing.ids.long().clamp(min=0))
        total = chosen.sum(-1, keepdim=True) + 1e-20 if spec.renormalize else 1.0
        weights = torch.where(present[:, None], chosen * spec.scaling / total, 0)
        torch.testing.assert_close(routing.weights.double(), weights, rtol=2e-6, atol=1e-12)
        self.check_groups(routing)

    def check_groups(self, routing):
        wanted = group_pairs(
            routing.ids.cpu(), routing.weights.cpu(), first=self.spec.first, local=self.spec.held
        )
        count = int(wanted.count)
        assert int(routing.count) == count
        assert routing.experts[:count].tolist() == wanted.experts[:count].tolist()
        assert routing.rows[:count].tolist() == wanted.rows[:count].tolist()


@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 17, 31, 32, 33, 48, 64])
def test_choices_weights_and_groups(tokens):
    Step(tokens).check()


@pytest.mark.parametrize(
    "site", [{"renormalize": False, "scaling": 2.5}, {"first": 112, "local": 56}], ids=str
)
@pytest.mark.parametrize("tokens", [1, 40])
def test_other_call_sites(tokens, site):
    Step(tokens, **site).check()


@pytest.mark.parametrize(("experts", "top_k"), [(16, 16), (100, 3), (1024, 32), (257, 8)])
def test_other_sizes(experts, top_k):
    Step(9, experts, top_k).check()


@pytest.mark.parametrize(("tokens", "padding"), [(4, (3,)), (64, range(33, 64)), (8, range(8)), (1, (0,))])
def test_padding_rows_choose_nobody(tokens, padding):
    step = Step(tokens, padding=padding)
    step.check()
    assert (step.routing.ids[list(padding)] == -1).all()


def test_the_triton_kernels_agree():
    for tokens, padding in ((1, ()), (13, (2,)), (64, ())):
        Step(tokens, provider="triton", padding=padding).check()
    Step(20, provider="triton", first=112, local=56).check()


def test_all_tokens_on_the_same_experts():
    step = Step(64)
    step.logits.copy_(step.logits[:1].expand(64, -1).clone())
    step.check()
    assert int(step.routing.count) == 16 * 8


def test_equal_scores_go_to_the_lower_expert():
    step = Step(3)
    step.logits.zero_()
    step.bias.zero_()
    assert step.run().ids.tolist() == [list(range(16))] * 3


def test_a_row_does_not_depend_on_the_others():
    step = Step(64)
    whole = step.run()
    ids, weights = whole.ids.clone(), whole.weights.clone()
    for token in (0, 31, 63):
        alone = step.op(step.logits[token : token + 1].clone(), step.routing)
        assert torch.equal(alone.ids[0], ids[token]) and torch.equal(alone.weights[0], weights[token])


def test_nan_and_infinite_scores_stay_in_their_row():
    step = Step(4)
    step.logits[1, 500] = float("nan")
    step.logits[2, 600] = float("inf")
    step.logits[2, 601] = float("-inf")
    routing = step.run()
    exact = moe_route(step.logits.double(), step.bias.double(), 16)
    assert torch.equal(routing.ids.sort(-1).values, exact.ids.sort(-1).values)
    assert routing.weights[1].isnan().all() and routing.weights[[0, 2, 3]].isfinite().all()
    step.check_groups(routing)


def test_zero_tokens_leave_no_group():
    step = Step(1)
    step.run()
    step.op(step.logits[:0], step.routing)
    assert int(step.routing.count) == 0


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("tokens", [1, 64])
def test_replays_under_jitter_give_the_same_bits(tokens, early):
    step = Step(tokens, overlap=Overlap(False, early))
    results = [step.routing.ids, step.routing.weights, step.routing.count, step.routing.rows]
    replayed_bits(step.run, step.forget, results, replays=60)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": lambda s: s.logits.half()}, "logits must be torch.float32"),
        ({"logits": lambda s: s.logits[:, :800]}, "logits must be of shape"),
        (
            {"padding": lambda s: torch.zeros(1, dtype=torch.bool, device="cuda")},
            "padding must be of shape 2",
        ),
        ({"routing": lambda s: s.op.buffers(1)}, "hold 1 tokens"),
    ],
    ids=["dtype", "experts", "padding", "buffers"],
)
def test_a_wrong_argument_is_named_before_any_launch(change, message):
    step = Step(2)
    arguments = {"logits": step.logits, "routing": step.routing, "padding": None}
    arguments |= {name: make(step) for name, make in change.items()}
    with pytest.raises(ValueError, match=message):
        step.op(**arguments)
    assert int(step.routing.count) == -77


def test_more_tokens_than_a_launch_holds_are_refused_or_fall_back():
    with pytest.raises(ValueError, match="65 tokens, at most 64"):
        Step(1).op.choice(65)
    assert MoeRoute(MoeRouteSpec(), torch.zeros(896, device="cuda")).choice(65).variant == "triton"
