"""Our kernels in a chain: overlapped by promises, they give the bits of the same kernels one at a time.

mix -> in-projection -> KDA -> o_proj, as the step's loop runs them, with the promises that `overlaps` derives.
"""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from runtime.kernels.common.launch import dispatch
from runtime.kernels.common.launch.dispatch import strict
from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.common.workshop.testing import replayed_bits
from runtime.model.providers.kda import KdaBlock, KdaRows, KdaWeights, launches
from runtime.model.providers.mix import MixKernel, MixSite
from runtime.model.step import Buffers, Residual, overlaps

pytestmark = pytest.mark.gpu
HIDDEN, HEAD, BLOCKS, EPS = 7168, 128, 8, 1e-5
IN_PROJECTION_ROWS = {12: 6288, 6: 3216}  # local heads -> rows of the packed projection, padded


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def half(*shape, scale=1.0):
    return (torch.randn(*shape, device="cuda") * scale).bfloat16()


def numbers(*shape, scale=1.0):
    return torch.randn(*shape, device="cuda") * scale


@dataclass
class State:
    """What one layer reads and writes in a step: the residual, the pages of its requests, buffers full of NaN."""

    residual: Residual
    rows: KdaRows
    buffers: Buffers

    @classmethod
    def random(cls, heads, requests):
        width, pages = heads * HEAD, requests + 1
        buffers = Buffers.allocate(
            requests, HIDDEN, BLOCKS, IN_PROJECTION_ROWS[heads], width, torch.device("cuda")
        )
        for name in vars(buffers):
            getattr(buffers, name).fill_(float("nan"))
        residual = Residual(half(requests, HIDDEN), half(requests, HIDDEN), half(requests, BLOCKS, HIDDEN))
        slots = (torch.randperm(requests, device="cuda") + 1).int().view(-1, 1)
        rows = KdaRows(half(pages, 3, 3 * width), numbers(pages, heads, HEAD, HEAD), slots, None)
        return cls(residual, rows, buffers)

    def tensors(self):
        """By name; the slots never change."""
        r, k, b = self.residual, self.rows, self.buffers
        named = {
            "prefix": r.prefix,
            "delta": r.delta,
            "blocks": r.blocks,
            "conv": k.conv_state,
            "state": k.state,
        }
        return named | {name: getattr(b, name) for name in ("x", "projected", "y", "attention")}


class Layer:
    """The mixture before attention and the KDA block of one layer, with random weights."""

    def __init__(self, heads):
        width, columns = heads * HEAD, IN_PROJECTION_ROWS[heads]
        site = MixSite(
            0, BLOCKS, None, True, half(HIDDEN, scale=0.1) + 1, half(HIDDEN, scale=0.05),
            half(HIDDEN, scale=0.1) + 1, EPS, EPS,
        )  # fmt: skip
        weights = KdaWeights(
            in_proj=half(columns, HIDDEN, scale=HIDDEN**-0.5),
            f_b=half(width, HEAD, scale=1 / 11),
            conv=numbers(3 * width, 4, scale=0.4),
            A_log=numbers(heads, scale=0.3),
            dt_bias=numbers(heads, HEAD, scale=0.3),
            norm=torch.rand(HEAD, device="cuda") + 0.5,
            o_proj=half(HIDDEN, width, scale=width**-0.5),
            lower_bound=-5.0,
            eps=EPS,
        )
        # a projection of another layer stands on both sides, as in a step
        before, after = launches(1, starts_block=False)[-1], launches(2, starts_block=False)[0]
        chain = [before, site.launch, *launches(0, starts_block=False), after]
        promises = overlaps(chain)
        assert promises[3] == Overlap(True, True), "KDA's state is settled, and a projection follows"
        self.mix = MixKernel(site, promises[1], provider="cute")
        self.attend = KdaBlock(weights, promises[3], provider="cute")

    def __call__(self, s):
        self.mix(s.residual, s.buffers.x)
        self.attend(s.buffers.x, s.rows, s.buffers, s.buffers.attention)

    def one_at_a_time(self, s):
        b, k = s.buffers, s.rows
        for run in (
            lambda: self.mix(s.residual, b.x),
            lambda: self.attend.in_projection(b.x, b.projected),
            lambda: self.attend.core(b.projected, k.conv_state, k.state, k.slots, b.y, None),
            lambda: self.attend.o_proj(b.y, b.attention),
        ):
            run()
            torch.cuda.synchronize()


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int16 if tensor.dtype == torch.bfloat16 else torch.int32)


def restore(state: State, start: State) -> None:
    for tensor, first in zip(state.tensors().values(), start.tensors().values(), strict=True):
        tensor.copy_(first)


@pytest.mark.parametrize(("heads", "requests"), [(12, 1), (12, 8), (6, 4), (12, 32)])
def test_an_overlapped_chain_equals_its_kernels_one_at_a_time(heads, requests):
    with strict():
        layer = Layer(heads)
    start = State.random(heads, requests)
    alone, chained = copy.deepcopy(start), copy.deepcopy(start)
    layer.one_at_a_time(alone)
    written = [t for name, t in chained.tensors().items() if name not in ("delta", "blocks")]
    replayed_bits(lambda: layer(chained), lambda: restore(chained, start), written, replays=100)
    for name, ours in chained.tensors().items():
        assert torch.equal(bits(ours), bits(alone.tensors()[name])), name


def test_two_layers_in_a_row_read_each_others_results():
    """The second layer's mixture adds the first layer's output, written by the kernel just before it."""
    with strict():
        first, second = Layer(12), Layer(12)
    start = State.random(12, 4), State.random(12, 4)

    def joined(pair):
        before = pair[0].residual
        pair[1].residual = Residual(before.prefix, pair[0].buffers.attention, before.blocks)
        return pair

    alone, chained = joined(copy.deepcopy(start)), joined(copy.deepcopy(start))
    for layer, state in zip((first, second), alone, strict=True):
        layer.one_at_a_time(state)

    def reset():
        restore(chained[0], start[0])
        shared = ("prefix", "delta", "blocks")
        for name, tensor in chained[1].tensors().items():
            if name not in shared:
                tensor.copy_(start[1].tensors()[name])

    def run():
        first(chained[0])
        second(chained[1])

    results = [chained[1].buffers.attention, chained[1].rows.state]
    replayed_bits(run, reset, results, replays=100)
    assert torch.equal(chained[1].buffers.attention, alone[1].buffers.attention)


def test_every_call_of_the_chain_is_recorded_with_its_reason():
    dispatch.reset()
    layer, state = Layer(12), State.random(12, 2)
    layer(state)
    taken = {choice.op: choice for choice in dispatch.records()}
    assert {op: c.variant for op, c in taken.items()} == dict.fromkeys(
        ("attn_res", "skinny_gemm", "kda_decode"), "cute"
    )
    assert all(choice.reason for choice in taken.values())
    assert sum(dispatch.records().values()) == 4
