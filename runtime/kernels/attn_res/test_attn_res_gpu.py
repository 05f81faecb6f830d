"""The kernels of Attention Residuals on a GPU: against the reference, in place, in graphs, under jitter."""

import pytest
import torch

from runtime.kernels.attn_res import attn_res
from runtime.kernels.attn_res.dispatch import AttnRes
from runtime.kernels.attn_res.spec import AttnResSpec
from runtime.kernels.common.launch.dispatch import strict
from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.common.workshop.testing import Guarded, bf16_ulps, replayed_bits

pytestmark = pytest.mark.gpu
D, EPS, OUT_EPS = 7168, 0.3, 0.02  # large and different, so that each is heard
SITES = [
    (0, 0, False, True),
    (1, None, True, True),
    (3, 3, True, True),
    (5, None, False, False),
    (8, None, True, True),
]


def randn(*shape):
    return torch.randn(*shape, device="cuda").bfloat16()


class Site:
    """One call site with guarded, poisoned buffers and what the reference makes of them."""

    def __init__(self, tokens, num_blocks, write, has_delta, has_norm, settled=False, provider="cute"):
        self.guarded, spec = (
            Guarded(),
            AttnResSpec(D, num_blocks, write, has_delta, has_norm, EPS, OUT_EPS, Overlap(settled, settled)),
        )
        weights = randn(D) * 0.1 + 1, randn(D) * 0.05, (randn(D) * 0.1 + 1 if has_norm else None)
        with strict():
            self.op = AttnRes(spec, *weights, provider=provider)
        self.prefix = self.guarded("prefix", randn(tokens, D))
        self.delta = self.guarded("delta", randn(tokens, D)) if has_delta else None
        blocks = randn(tokens, 8, D)
        blocks[:, num_blocks:] = float("nan")  # not a source
        self.blocks, self.out = self.guarded("blocks", blocks), self.guarded.poisoned("out", (tokens, D))
        self.before = self.prefix.clone(), self.blocks.clone()
        fixed = dict(zip(("score_norm", "score_vec", "out_norm"), weights, strict=True))
        fixed |= {"num_blocks": num_blocks, "write": write, "eps": EPS, "out_eps": OUT_EPS}
        self.expected = attn_res(self.prefix, self.delta, self.blocks, **fixed)

    def run(self):
        self.op(self.prefix, self.delta, self.blocks, self.out)

    def reset(self):
        self.prefix.copy_(self.before[0])
        self.blocks.copy_(self.before[1])
        self.out.fill_(float("nan"))

    def check(self):
        self.guarded.check()
        assert torch.equal(self.prefix, self.expected.prefix)
        assert torch.equal(self.blocks.nan_to_num(7.0), self.expected.blocks.nan_to_num(7.0))
        assert bf16_ulps(self.out, self.expected.out) <= 1.01


@pytest.mark.parametrize("settled", [False, True], ids=["waits", "settled"])
@pytest.mark.parametrize("tokens", [1, 2, 5, 9, 17, 33, 64])
@pytest.mark.parametrize("site", SITES, ids=str)
def test_the_cluster_kernel_equals_the_reference(site, tokens, settled):
    case = Site(tokens, *site, settled=settled)
    case.run()
    case.check()


@pytest.mark.parametrize("site", SITES, ids=str)
def test_the_triton_kernel_equals_the_reference(site):
    case = Site(5, *site, provider="triton")
    case.run()
    case.check()


@pytest.mark.parametrize("tokens", [1, 7, 64])
def test_replays_under_jitter_give_the_same_bits(tokens):
    case = Site(tokens, 8, 2, True, True, settled=True)
    replayed_bits(case.run, case.reset, [case.out, case.prefix, case.blocks])


@pytest.mark.parametrize("others", [1, 3, 16, 63])
def test_a_token_has_the_same_bits_in_any_batch_of_one_launch_shape(others):
    case = Site(others + 1, 8, None, True, True)
    prefix, delta, blocks = case.prefix.clone(), case.delta.clone(), case.blocks.clone()
    case.run()
    for changed in (prefix[1:], delta[1:], blocks[1:]):
        changed.copy_(torch.randn_like(changed) * 3)
    out = torch.empty_like(case.out)
    case.op(prefix, delta, blocks, out)
    assert torch.equal(out[0], case.out[0])


def test_row_slices_of_wider_buffers_are_accepted():
    case = Site(4, 8, None, True, True)
    wide = torch.zeros(4, D + 64, device="cuda", dtype=torch.bfloat16)
    wide[:, 32 : D + 32] = case.delta
    case.op(case.prefix, wide[:, 32 : D + 32], case.blocks, case.out)
    case.check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prefix": lambda c: c.prefix.float()}, "prefix must be torch.bfloat16"),
        ({"delta": lambda c: None}, "delta must be given exactly if has_delta"),
        ({"delta": lambda c: c.delta[:1]}, "delta must be of shape 3 x 7168"),
        ({"blocks": lambda c: c.blocks[:, :4]}, "blocks must be at least 8 blocks"),
        ({"out": lambda c: c.out.cpu()}, "out must be on cuda"),
    ],
    ids=["dtype", "missing", "rows", "blocks", "device"],
)
def test_a_wrong_argument_is_named_before_any_launch(change, message):
    case = Site(3, 8, None, True, True)
    arguments = {name: getattr(case, name) for name in ("prefix", "delta", "blocks", "out")}
    arguments |= {name: make(case) for name, make in change.items()}
    with pytest.raises(ValueError, match=message):
        case.op(**arguments)
    assert torch.equal(case.prefix, case.before[0])


def test_an_empty_batch_is_no_launch():
    case = Site(0, 8, None, True, True)
    case.run()
    case.guarded.check()
