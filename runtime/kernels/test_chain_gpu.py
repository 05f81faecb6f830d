"""Our kernels in a chain: overlapped by promises, they give the bits of the same kernels one at a time."""

import copy

import pytest
import torch

from runtime.kernels.chain import AttentionHalf, Buffers
from runtime.kernels.common.launch import dispatch
from runtime.kernels.common.launch.dispatch import strict
from runtime.kernels.common.workshop.testing import replayed_bits

pytestmark = pytest.mark.gpu
RESULTS = ("prefix", "x", "projected", "state", "conv_state", "y", "attn_out")


def bits(buffers):
    return [
        getattr(buffers, name).contiguous().view(torch.int16 if name != "state" else torch.int32)
        for name in RESULTS
    ]


@pytest.mark.parametrize(("heads", "requests"), [(12, 1), (12, 8), (6, 4), (12, 32)])
def test_an_overlapped_chain_equals_its_kernels_one_at_a_time(heads, requests):
    with strict():
        layer = AttentionHalf(heads)
    start = Buffers.random(heads, requests)
    alone, chained = copy.deepcopy(start), copy.deepcopy(start)
    for operator, arguments in (
        (layer.attn_res, ("prefix", "delta", "blocks", "x")),
        (layer.in_projection, ("x", "projected")),
        (layer.kda, ("projected", "conv_state", "state", "slots", "y")),
        (layer.o_proj, ("y", "attn_out")),
    ):
        operator(*(getattr(alone, name) for name in arguments))
        torch.cuda.synchronize()

    def reset():
        for name in vars(start):
            getattr(chained, name).copy_(getattr(start, name))

    results = [getattr(chained, name) for name in RESULTS]
    replayed_bits(lambda: layer(chained), reset, results, replays=100)
    for name, ours, expected in zip(RESULTS, bits(chained), bits(alone), strict=True):
        assert torch.equal(ours, expected), name


def test_two_layers_in_a_row_read_each_others_results():
    """The second layer's attn_res adds the first layer's output, written by the kernel just before it."""
    with strict():
        first, second = AttentionHalf(12), AttentionHalf(12)
    start = Buffers.random(12, 4), Buffers.random(12, 4)

    def joined(pair):
        pair[1].prefix, pair[1].blocks, pair[1].delta = pair[0].prefix, pair[0].blocks, pair[0].attn_out
        return pair

    alone = joined(copy.deepcopy(start))
    for layer, buffers in zip((first, second), alone, strict=True):
        layer(buffers)
        torch.cuda.synchronize()
    chained = joined(copy.deepcopy(start))

    def reset():
        for ours, theirs in zip(chained, start, strict=True):
            for name in vars(ours):
                if ours is chained[0] or name not in ("prefix", "blocks", "delta"):
                    getattr(ours, name).copy_(getattr(theirs, name))

    def run():
        first(chained[0])
        second(chained[1])

    replayed_bits(run, reset, [chained[1].attn_out, chained[1].state], replays=100)
    assert torch.equal(chained[1].attn_out, alone[1].attn_out)


def test_every_call_of_the_chain_is_recorded_with_its_reason():
    dispatch.reset()
    layer, buffers = AttentionHalf(12), Buffers.random(12, 2)
    layer(buffers)
    taken = {choice.op: choice for choice in dispatch.records()}
    assert {op: c.variant for op, c in taken.items()} == dict.fromkeys(
        ("attn_res", "skinny_gemm", "kda_decode"), "cute"
    )
    assert all(choice.reason for choice in taken.values())
    assert sum(dispatch.records().values()) == 4
