"""The routed experts on a GPU: against the reference on the checkpoint's format, in graphs, under jitter."""

from functools import cache

import pytest
import torch

from runtime.kernels.common.launch.dispatch import strict
from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.common.launch.routing import group_pairs
from runtime.kernels.common.workshop.testing import Guarded, relative_error, replayed_bits
from runtime.kernels.moe_experts.dispatch import MoeExperts, Workspace
from runtime.kernels.moe_experts.layout import pack_humming, unpack_humming
from runtime.kernels.moe_experts.reference import moe_experts
from runtime.kernels.moe_experts.shapes import Down, GateUp
from runtime.kernels.moe_experts.spec import MoeExpertsSpec
from runtime.kernels.moe_experts.table import Launch

pytestmark = pytest.mark.gpu
K = 3584


@cache
def checkpoint(experts, rows, columns, low=118, high=123):
    """Random (codes, scales) in the checkpoint's format."""
    generator = torch.Generator("cuda").manual_seed(experts + rows + columns)
    bytes_ = {"dtype": torch.uint8, "device": "cuda", "generator": generator}
    codes = torch.randint(0, 256, (experts, rows, columns // 2), **bytes_)
    return codes, torch.randint(low, high, (experts, rows, columns // 32), **bytes_)


class Step:
    """One call with guarded, poisoned buffers, and what the reference makes of it in FP64."""

    def __init__(
        self,
        tokens,
        width=384,
        experts=64,
        ids=None,
        provider="cute",
        launch=None,
        spare=0,
        first=0,
        settled=False,
    ):
        self.guarded, self.launch = Guarded(), launch
        spec = MoeExpertsSpec(K, width, experts, overlap=Overlap(settled=settled))
        self.w13, self.w2 = checkpoint(experts, 2 * width, K), checkpoint(experts, K, width)
        with strict():
            self.op = MoeExperts.from_checkpoint(spec, self.w13, self.w2, provider=provider)
        if ids is None:
            ids = torch.rand(tokens, experts, device="cuda").topk(16).indices + first
        weights = torch.rand(tokens, 16, device="cuda") / 16
        self.routing = group_pairs(ids, weights, first=first, local=experts)
        self.x = self.guarded("x", torch.randn(tokens, K, device="cuda").bfloat16())
        pairs = (tokens + spare) * 16
        self.workspace = Workspace(
            self.guarded.poisoned("hidden", (pairs, width)),
            self.guarded.poisoned("partial", (pairs, K)),
            self.guarded("counters", torch.zeros(K // 64, dtype=torch.int32, device="cuda")),
        )
        self.out = self.guarded.poisoned("out", (tokens, K))

    def forget(self):
        for buffer in (self.workspace.hidden, self.workspace.partial, self.out):
            buffer.fill_(float("nan"))

    def run(self):
        return self.op(self.x, self.routing, self.workspace, self.out, launch=self.launch)

    def check(self):
        self.run()
        self.guarded.check()
        assert (self.workspace.counters == 0).all()
        r = self.routing
        exact = moe_experts(self.x.double(), r.weights, r.ids, self.w13, self.w2, first=r.first)
        rounded = moe_experts(self.x, r.weights, r.ids, self.w13, self.w2, first=r.first)
        if not exact.any():
            assert torch.equal(self.out, torch.zeros_like(self.out))
            return
        assert relative_error(self.out, exact) < 1.2 * relative_error(rounded, exact) + 1e-5
        assert relative_error(self.out, rounded) < 3e-3


SHAPES = [
    Launch(0, GateUp(4, 4, 3, 3), Down(4, 4, 3, 4)),
    Launch(0, GateUp(4, 4, 4, 2, True), Down(4, 4, 2, 6)),
    Launch(0, GateUp(8, 1, 2, 2), Down(4, 7, 3, 4, True)),
    Launch(0, GateUp(4, 2, 4, 2), Down(8, 2, 1, 6)),
    Launch(0, GateUp(7, 4, 2, 2), Down(4, 9, 4, 3)),
    Launch(0, GateUp(7, 2, 2, 2), Down(8, 4, 2, 3)),
]
SINGLE = Launch(0, GateUp(8, 1, 2, 2), Down(4, 9, 4, 4))


@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 17, 33, 64])
@pytest.mark.parametrize("width", [384, 192])
def test_the_table_equals_the_reference(width, tokens):
    Step(tokens, width).check()


@pytest.mark.parametrize("tokens", [1, 9])
@pytest.mark.parametrize("launch", SHAPES, ids=str)
def test_every_launch_shape_equals_the_reference(launch, tokens):
    Step(tokens, launch=launch).check()


@pytest.mark.parametrize("launch", [SHAPES[0], SINGLE], ids=["cluster", "single"])
def test_settled_groups_change_no_bit(launch):
    torch.manual_seed(1)
    waits = Step(3, launch=launch)
    torch.manual_seed(1)
    settled = Step(3, launch=launch, settled=True)
    settled.check()
    assert torch.equal(waits.run(), settled.run())


def test_all_experts_of_a_rank():
    Step(64, experts=896).check()


def test_a_share_of_full_width():
    ids = torch.rand(8, 896, device="cuda").topk(16).indices
    step = Step(8, width=3072, experts=56, ids=ids, first=112)
    step.check()


@pytest.mark.parametrize("launch", [SHAPES[0], SINGLE], ids=["cluster", "single"])
def test_all_tokens_on_the_same_experts(launch):
    Step(64, ids=torch.arange(16, device="cuda").repeat(64, 1), launch=launch).check()


def test_skewed_choices():
    popular = 1 / torch.arange(1, 65, device="cuda").float()
    Step(64, ids=torch.multinomial(popular.repeat(64, 1), 16)).check()


def test_padding_rows_and_foreign_ids_give_zeros_and_touch_nothing():
    ids = torch.rand(5, 64, device="cuda").topk(16).indices
    ids[1], ids[3, 5:], ids[4] = -1, 99999, -2147483648
    step = Step(5, ids=ids)
    step.check()
    assert not step.out[[1, 4]].any()


def test_no_group_at_all_gives_zeros():
    Step(3, ids=torch.full((3, 16), -1, device="cuda")).check()


def test_a_token_has_the_same_bits_alone_and_in_a_batch():
    step = Step(64, launch=SINGLE)
    whole = step.run().clone()
    r = step.routing
    for token in (0, 40, 63):
        one = slice(token, token + 1)
        routing = group_pairs(r.ids[one], r.weights[one], first=0, local=64)
        out = torch.empty(1, K, dtype=torch.bfloat16, device="cuda")
        step.op(step.x[one].clone(), routing, step.workspace, out, launch=SINGLE)
        assert torch.equal(out[0], whole[token])


def test_nan_stays_in_its_token():
    step = Step(8)
    step.x[3, 77] = float("nan")
    step.run()
    assert step.out[3].isnan().all() and step.out[[0, 1, 2, 4, 5, 6, 7]].isfinite().all()


def test_zero_tokens_do_nothing():
    step = Step(2)
    step.op(step.x[:0], step.routing, step.workspace, step.out[:0])
    assert step.out.isnan().all()


@pytest.mark.parametrize("provider", ["cute", "triton"])
def test_smallest_scales(provider):
    step = Step(2, provider=provider)
    step.op.w13[1].zero_()  # 2^-127: products far below anything that SiTU can tell from zero
    assert torch.equal(step.run(), torch.zeros_like(step.out))


def test_a_nan_scale_is_refused_by_name_and_falls_back_to_triton():
    codes, scales = checkpoint(16, 2 * 384, K)
    scales = scales.clone()
    scales[3, 5, 7] = 255
    spec, w2 = MoeExpertsSpec(K, 384, 16), checkpoint(16, K, 384)
    with pytest.raises(ValueError, match="255, which means NaN"):
        MoeExperts.from_checkpoint(spec, (codes, scales), w2, provider="cute")
    op = MoeExperts.from_checkpoint(spec, (codes, scales), w2)
    assert op.choice.variant == "triton"
    ids = torch.arange(16, device="cuda").repeat(2, 1)
    ids[1, 3] = -1
    routing = group_pairs(ids, torch.rand(2, 16, device="cuda"), first=0, local=16)
    out = torch.zeros(2, K, dtype=torch.bfloat16, device="cuda")
    op(torch.randn(2, K, device="cuda").bfloat16(), routing, op.buffers(2), out)
    assert out[0].isnan().all() and out[1].isfinite().all()


def test_large_scales_fall_back_and_are_right():
    codes, scales = checkpoint(16, 2 * 384, K)
    scales = scales.clone()
    scales[:, :, 0] = 131
    w2 = checkpoint(16, K, 384)
    op = MoeExperts.from_checkpoint(MoeExpertsSpec(K, 384, 16), (codes, scales), w2)
    assert op.choice.variant == "triton" and "131, above 128" in op.choice.reason
    x = torch.randn(2, K, device="cuda").bfloat16() * 0.01
    routing = group_pairs(
        torch.arange(16, device="cuda").repeat(2, 1), torch.rand(2, 16, device="cuda"), first=0, local=16
    )
    out = op(x, routing, op.buffers(2), torch.empty_like(x))
    exact = moe_experts(x.double(), routing.weights, routing.ids, (codes, scales), w2)
    assert relative_error(out, exact) < 1e-2


@pytest.mark.parametrize("tokens", [1, 5])
def test_the_triton_kernels_equal_the_reference(tokens):
    Step(tokens, experts=16, provider="triton").check()


@pytest.mark.parametrize(("tokens", "launch"), [(1, SHAPES[0]), (8, SHAPES[0]), (8, SINGLE), (64, SINGLE)])
def test_replays_under_jitter_give_the_same_bits(tokens, launch):
    step = Step(tokens, launch=launch, settled=True)
    replayed_bits(step.run, step.forget, [step.out], replays=60)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": lambda s: s.x.float()}, "x must be torch.bfloat16"),
        ({"x": lambda s: s.x[:, :512]}, "x must be of shape"),
        ({"out": lambda s: s.out[:1]}, "out must be of shape 2"),
        ({"workspace": lambda s: s.op.buffers(1)}, "workspace must be for 32 pairs"),
        (
            {"routing": lambda s: group_pairs(s.routing.ids, s.routing.weights, first=0, local=8)},
            "for 64 experts",
        ),
    ],
    ids=["dtype", "latent", "out", "workspace", "experts"],
)
def test_a_wrong_argument_is_named_before_any_launch(change, message):
    step = Step(2)
    arguments = {"x": step.x, "routing": step.routing, "workspace": step.workspace, "out": step.out}
    arguments |= {name: make(step) for name, make in change.items()}
    with pytest.raises(ValueError, match=message):
        step.op(**arguments)
    assert step.out.isnan().all()


def test_the_layout_is_what_hummings_own_repacking_makes():
    pytest.importorskip("humming", reason="humming-kernels is not installed")
    from humming import dtypes
    from humming.transform import transform_humming_weight, transform_humming_weight_scale

    codes, scales = checkpoint(4, 768, K)
    weight, packed = pack_humming(codes, scales)
    theirs = transform_humming_weight(
        codes.contiguous().view(torch.int32), dtypes.float4e2m1, dtypes.bfloat16, packed=True
    )
    assert torch.equal(theirs.view(-1), weight.view(-1))
    assert torch.equal(transform_humming_weight_scale(scales).view(torch.uint8).view(-1), packed.view(-1))
    back = unpack_humming(theirs.view(weight.shape), packed)
    assert torch.equal(back[0], codes) and torch.equal(back[1], scales)
