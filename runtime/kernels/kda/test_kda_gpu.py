"""The kernels of KDA decode on a GPU: against the composed reference, caches in place, in graphs, under jitter."""

import pytest
import torch

from runtime.kernels.common.launch.dispatch import strict
from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.common.workshop.testing import Guarded, relative_error, replayed_bits
from runtime.kernels.kda.composed import kda_decode_composed
from runtime.kernels.kda.dispatch import KdaDecode
from runtime.kernels.kda.spec import KdaDecodeSpec

pytestmark = pytest.mark.gpu
K = 128


def randn(*shape):
    return torch.randn(*shape, device="cuda")


class Step:
    """One step of some requests with guarded buffers, and what the reference makes of it."""

    def __init__(self, heads, requests, tokens=1, padding=(), settled=False, provider="cute", spare=0):
        self.guarded, width = Guarded(), heads * K
        weights = (
            (randn(width, K) / 11).bfloat16(),
            randn(3 * width, 4) * 0.4,
            randn(heads) * 0.3,
            randn(heads, K) * 0.3,
            torch.rand(K, device="cuda") + 0.5,
        )
        spec = KdaDecodeSpec(heads, tokens, overlap=Overlap(settled, settled))
        with strict():
            self.op = KdaDecode(spec, *weights, provider=provider)
        columns = -(-(4 * width + K + heads) // 16) * 16
        pages = requests * tokens + 1 + spare
        order = torch.randperm(pages - 1, device="cuda")[: requests * tokens] + 1
        self.slots = order.view(requests, tokens).int()
        self.slots[list(padding)] = 0
        self.accepted = torch.randint(1, tokens + 1, (requests,), device="cuda").int() if tokens > 1 else None
        self.projected = self.guarded("projected", randn(requests * tokens, columns).bfloat16())
        self.conv_state = self.guarded("conv_state", randn(pages, tokens + 2, 3 * width).bfloat16())
        self.state = self.guarded("state", randn(pages, heads, K, K))
        self.out = self.guarded.poisoned("out", (requests * tokens, width))
        self.before = self.conv_state.clone(), self.state.clone()
        self.expected = [t.double() for t in (self.state, self.out)]
        self.expected_conv = self.conv_state.clone()
        kda_decode_composed(
            self.projected,
            *(weights[0], *(w.double() for w in weights[1:])),
            self.expected_conv,
            self.expected[0],
            self.slots,
            self.accepted,
            self.expected[1],
            lower_bound=spec.lower_bound,
            eps=spec.eps,
        )

    def run(self):
        self.op(self.projected, self.conv_state, self.state, self.slots, self.out, self.accepted)

    def reset(self):
        self.conv_state.copy_(self.before[0])
        self.state.copy_(self.before[1])
        self.out.fill_(float("nan"))

    def check(self):
        self.guarded.check()
        written = set(self.slots.flatten().tolist()) - {0}
        kept = [page for page in range(self.state.shape[0]) if page not in written]
        assert torch.equal(self.state[kept], self.before[1][kept]), "a slot that no request owns was written"
        assert torch.equal(self.conv_state, self.expected_conv)
        # A forget projection near a rounding boundary may round the other way, which moves one column of a state.
        assert relative_error(self.state, self.expected[0]) < 1e-4
        assert relative_error(self.out, self.expected[1]) < 3e-3
        worst = (self.out.double() - self.expected[1]).abs().max()
        assert worst < 0.02 * self.expected[1].abs().max()


@pytest.mark.parametrize("settled", [False, True], ids=["waits", "settled"])
@pytest.mark.parametrize("requests", [1, 2, 5, 8, 17, 33, 64])
@pytest.mark.parametrize("heads", [12, 6, 3, 24])
def test_decode_equals_the_reference(heads, requests, settled):
    step = Step(heads, requests, padding=[0] if requests > 2 else [], settled=settled, spare=2)
    step.run()
    step.check()


@pytest.mark.parametrize("settled", [False, True], ids=["waits", "settled"])
@pytest.mark.parametrize(("tokens", "requests"), [(2, 1), (3, 3), (5, 7), (8, 1), (8, 2), (8, 5)])
@pytest.mark.parametrize("heads", [12, 6])
def test_verify_equals_the_reference(heads, tokens, requests, settled):
    step = Step(heads, requests, tokens, padding=[1] if requests > 1 else [], settled=settled)
    step.run()
    step.check()


@pytest.mark.parametrize(("tokens", "requests"), [(1, 3), (4, 3)])
def test_the_triton_kernel_equals_the_reference(tokens, requests):
    step = Step(6, requests, tokens, padding=[1], provider="triton")
    step.run()
    step.check()


@pytest.mark.parametrize(
    ("heads", "requests", "tokens"), [(12, 1, 1), (12, 7, 1), (12, 64, 1), (6, 4, 8), (12, 8, 3)]
)
def test_replays_under_jitter_give_the_same_bits(heads, requests, tokens):
    step = Step(heads, requests, tokens, settled=True)
    replayed_bits(step.run, step.reset, [step.out, step.state, step.conv_state], replays=100)


def test_only_padding_gives_zeros_and_touches_nothing():
    step = Step(12, 3, padding=[0, 1, 2])
    step.run()
    step.guarded.check()
    assert torch.equal(step.out, torch.zeros_like(step.out))
    assert torch.equal(step.state, step.before[1]) and torch.equal(step.conv_state, step.before[0])


def test_many_steps_stay_close_to_double_precision():
    step = Step(6, 2)
    exact = [step.before[0].clone(), step.before[1].double()]
    out = torch.empty(step.out.shape, dtype=torch.float64, device="cuda")
    weights = (step.op.weights[0], *(w.double() for w in step.op.weights[1:]))
    for _ in range(200):
        step.projected.copy_(randn(*step.projected.shape).bfloat16())
        step.run()
        numbers = {"lower_bound": -5.0, "eps": 1e-5}
        kda_decode_composed(step.projected, *weights, *exact, step.slots, None, out, **numbers)
    assert relative_error(step.state, exact[1]) < 1e-3
    assert relative_error(step.out, out) < 3e-3


def test_paged_caches_with_gaps_between_slots_are_accepted():
    step = Step(12, 4)
    state = torch.full((5, 3, 12, K, K), float("nan"), device="cuda")
    conv = torch.full((5, 4, 3 * 12 * K), float("nan"), device="cuda").bfloat16()
    state[:, 1], conv[:, :3] = step.state, step.conv_state
    step.op(step.projected, conv[:, :3], state[:, 1], step.slots, step.out)
    step.state.copy_(state[:, 1])
    step.conv_state.copy_(conv[:, :3])
    step.check()
    assert state[:, [0, 2]].isnan().all() and conv[:, 3].isnan().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": lambda s: s.slots.long()}, "slots must be torch.int32"),
        ({"state": lambda s: s.state.half()}, "state must be torch.float32"),
        ({"state": lambda s: s.state[:, :6]}, "state must be of shape"),
        ({"projected": lambda s: s.projected[:, :512]}, "projected must be at least 6284 columns wide"),
        ({"accepted": lambda s: s.slots[:, 0]}, "accepted must be given exactly for verify"),
        ({"conv_state": lambda s: s.conv_state[:, :2]}, "conv_state must be at least 3 inputs wide"),
    ],
    ids=["slots dtype", "state dtype", "heads", "columns", "accepted", "window"],
)
def test_a_wrong_argument_is_named_before_any_launch(change, message):
    step = Step(12, 2)
    names = ("projected", "conv_state", "state", "slots", "out", "accepted")
    arguments = {name: getattr(step, name) for name in names}
    arguments |= {name: make(step) for name, make in change.items()}
    with pytest.raises(ValueError, match=message):
        step.op(**arguments)
    assert torch.equal(step.state, step.before[1])
