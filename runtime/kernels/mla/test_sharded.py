"""The (o, LSE) form: any cut of the context merges to the unsharded attention, within one BF16 ulp."""

import os

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from runtime.kernels.mla import oracle
from runtime.kernels.mla.sharded import merge_partials, mla_partial, shard_length, shard_positions

N, DN, DR, L, DV = 3, 8, 4, 20, 6
SCALE = (DN + DR) ** -0.5


def ulps(a, b):
    """Distance of two tensors in BF16 places, through zero."""
    ordered = [x.bfloat16().view(torch.int16).int() for x in (a, b)]
    ordered = [torch.where(x < 0, -(x & 0x7FFF), x) for x in ordered]
    return int((ordered[0] - ordered[1]).abs().max())


def whole(query, rows, limits):
    """Unsharded, by the oracle in FP64."""
    visible = np.arange(len(rows)) <= limits[:, None].numpy()
    o, lse = oracle.latent(query.double().numpy(), rows.double().numpy(), visible, SCALE, L)
    return torch.from_numpy(o), torch.from_numpy(lse)


def parts(query, rows, limits, ranks, length=None, spoil=float("nan")):
    """What every rank of an interleaved context computes; rows behind its length hold `spoil`."""
    length = len(rows) if length is None else length
    found = []
    for rank in range(ranks):
        held = rows[rank::ranks].clone()
        mine = shard_length(length, ranks, rank)
        held[mine:] = spoil
        positions = shard_positions(len(held), ranks, rank)
        visible = (positions <= limits[:, None]) & (torch.arange(len(held)) < mine)
        found.append(mla_partial(query, held, visible, SCALE, L))
    return [torch.stack(part) for part in zip(*found, strict=True)]


def make(tokens, keys, seed=0):
    torch.manual_seed(seed)
    return torch.randn(tokens, N, L + DR).bfloat16(), torch.randn(keys, L + DR).bfloat16()


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 16])
@pytest.mark.parametrize(("tokens", "keys"), [(1, 1), (1, 5), (2, 7), (8, 8), (3, 300), (1, 1000)])
def test_shards_of_every_rank_merge_to_the_unsharded_attention(ranks, tokens, keys):
    """With fewer rows than ranks some shards are empty, for all queries or for the first ones."""
    query, rows = make(tokens, keys)
    limits = keys - tokens + torch.arange(tokens)
    o, lse = parts(query, rows, limits, ranks)
    merged, merged_lse = merge_partials(o, lse)
    exact, exact_lse = whole(query, rows, limits)
    assert ulps(merged, exact) <= 1
    torch.testing.assert_close(merged_lse.double(), exact_lse, rtol=1e-6, atol=1e-5)


def test_an_empty_shard_adds_nothing_whatever_it_holds():
    query, rows = make(2, 40)
    limits = torch.tensor([38, 39])
    o, lse = mla_partial(query, rows, torch.arange(40) <= limits[:, None], SCALE, L)
    spoiled = torch.stack([torch.full_like(o, float("nan")), o, torch.full_like(o, float("inf"))])
    empty = torch.full_like(lse, -torch.inf)
    merged = merge_partials(spoiled, torch.stack([empty, lse, empty]))
    assert torch.equal(merged[0], o)
    torch.testing.assert_close(merged[1], lse, rtol=0, atol=2e-6)


def test_all_shards_empty_give_zeros_and_minus_infinity():
    o, lse = merge_partials(torch.full((3, 2, N, L), float("nan")), torch.full((3, 2, N), -torch.inf))
    assert torch.equal(o, torch.zeros(2, N, L)) and (lse == -torch.inf).all()


@pytest.mark.parametrize("gap", [20.0, 88.0, 89.0, 104.0, 500.0, 3e38])
@pytest.mark.parametrize("winner", [0, 1, 2])
def test_gaps_beyond_the_range_of_exp_leave_the_larger_shard(gap, winner):
    torch.manual_seed(1)
    o, lse = torch.randn(3, 1, N, L), torch.zeros(3, 1, N) - gap
    lse[winner] = 1.0
    merged, merged_lse = merge_partials(o, lse)
    exact = torch.softmax(lse.double(), 0)
    assert ulps(merged, (exact[..., None] * o.double()).sum(0)) <= 1
    assert merged.isfinite().all() and torch.allclose(merged_lse, torch.tensor(1.0), atol=1e-5)


@pytest.mark.parametrize("sign", [1, -1])
def test_large_scores_of_either_sign_do_not_overflow(sign):
    """Log-sum-exps near ±1000, where exp is inf or 0."""
    query, rows = make(1, 64)
    query, rows = query.abs() * 200 * sign, rows.abs() * 10
    limits = torch.tensor([63])
    merged, lse = merge_partials(*parts(query, rows, limits, 4))
    exact, exact_lse = whole(query, rows, limits)
    assert exact_lse.abs().min() > 1000
    assert ulps(merged, exact) <= 1
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=0)


def test_one_row_that_dominates_is_the_result_wherever_it_is():
    query, rows = make(1, 100)
    query, rows = query.abs(), rows * 0.01
    for place in (0, 50, 99):
        spiked = rows.clone()
        spiked[place] = 60.0
        merged, _ = merge_partials(*parts(query, spiked, torch.tensor([99]), 8))
        assert ulps(merged, whole(query, spiked, torch.tensor([99]))[0]) <= 1
        assert ulps(merged, torch.full_like(merged, 60.0)) <= 1


def test_a_million_equal_logits_are_their_mean():
    """Every weight is 1e-6; the values are few, so that their mean is known exactly."""
    keys = 1 << 20
    query = torch.zeros(1, 1, L + DR).bfloat16()
    rows = (torch.arange(keys) % 5).bfloat16()[:, None].expand(-1, L + DR)
    mean = (torch.arange(keys) % 5).double().mean()
    merged, lse = merge_partials(*parts(query, rows, torch.tensor([keys - 1]), 8))
    assert ulps(merged, mean.expand_as(merged)) == 0
    assert abs(float(lse[0, 0]) - np.log(keys)) < 1e-5


def test_the_order_of_shards_changes_no_more_than_the_last_bits():
    query, rows = make(1, 333)
    o, lse = parts(query, rows, torch.tensor([332]), 7)
    forth, back = merge_partials(o, lse)[0], merge_partials(o.flip(0), lse.flip(0))[0]
    torch.testing.assert_close(forth, back, rtol=1e-5, atol=1e-6)


def test_a_nan_of_a_query_stays_with_its_query():
    query, rows = make(2, 30)
    query[0, 1] = float("nan")
    o, lse = merge_partials(*parts(query, rows, torch.tensor([28, 29]), 3))
    assert o[0, 1].isnan().all() and lse[0, 1].isnan()
    assert o[0, [0, 2]].isfinite().all() and o[1].isfinite().all()


# ---- processes --------------------------------------------------------------------------------------------

RANKS, TOKENS, KEYS = 3, 2, 50


def _rank(rank, store, failures):
    """One rank of decode context parallelism: all heads over a shard of the context, then its own of all shards."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    try:
        for keys in (KEYS, 4, 2):  # with 2 rows the third rank's shard is empty
            query, rows = make(TOKENS, keys, seed=keys)
            mine = query[:, rank : rank + 1]  # a head a rank
            heads = [torch.empty_like(mine) for _ in range(RANKS)]
            dist.all_gather(heads, mine.contiguous())
            gathered = torch.cat(heads, 1)
            positions = shard_positions(shard_length(keys, RANKS, rank), RANKS, rank)
            limits = keys - TOKENS + torch.arange(TOKENS)
            visible = positions <= limits[:, None]
            o, lse = mla_partial(gathered, rows[rank::RANKS], visible, SCALE, L)
            packed = torch.cat([o, lse[..., None]], -1)
            received = [torch.empty_like(packed) for _ in range(RANKS)]
            dist.all_gather(received, packed)
            own = torch.stack(received)[:, :, rank : rank + 1]
            merged, _ = merge_partials(own[..., :L], own[..., L])
            exact, _ = whole(query[:, rank : rank + 1], rows, limits)
            if ulps(merged, exact) > 1:
                failures.put((rank, keys))
    finally:
        dist.destroy_process_group()


def test_processes_that_exchange_their_parts_agree_with_the_unsharded_attention(tmp_path):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    context = mp.get_context("spawn")
    failures = context.SimpleQueue()
    mp.spawn(_rank, (str(tmp_path / "store"), failures), nprocs=RANKS)
    assert failures.empty()
