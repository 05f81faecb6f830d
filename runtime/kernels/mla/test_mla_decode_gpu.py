"""MLA decode on a GPU: both cores against FP64, in graphs whose lengths change, under jitter, sharded, very long."""

from dataclasses import replace

import pytest
import torch

from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.common.workshop.testing import Guarded, bf16_ulps, relative_error, replayed_bits
from runtime.kernels.mla.bench_steps import random_step, random_weights
from runtime.kernels.mla.composed import mla_core, mla_query, mla_value
from runtime.kernels.mla.dispatch import MlaDecode, Workspace
from runtime.kernels.mla.shapes import LATENT, ROW, VALUE
from runtime.kernels.mla.sharded import merge_partials
from runtime.kernels.mla.spec import MlaDecodeSpec
from runtime.kernels.mla.table import Launch

pytestmark = pytest.mark.gpu
PROVIDERS = ["cute", "triton"]


class Case:
    """One step with guarded, poisoned buffers, and what the definition makes of it in FP64 and in BF16."""

    def __init__(self, heads, tokens, lengths, provider, launch=None, overlap=None, **step):
        self.spec = MlaDecodeSpec(heads, tokens, overlap=overlap or Overlap())
        self.weights = random_weights(self.spec)
        self.op = MlaDecode(self.spec, *self.weights.operands, provider=provider)
        self.step, self.launch, self.guarded = random_step(self.spec, lengths, **step), launch, Guarded()
        self.cache = self.guarded("cache", self.step.context.cache)
        self.step.context = replace(self.step.context, cache=self.cache)
        self.step.out = self.guarded.poisoned("out", self.step.out.shape)
        self.before = self.cache.clone()
        self.space = self._workspace(len(lengths))

    def _workspace(self, requests):
        fresh = self.op.buffers(requests)
        poisoned = {
            name: self.guarded.poisoned(name, tensor.shape, tensor.dtype)
            for name, tensor in vars(fresh).items()
            if name != "zeros"
        }
        return Workspace(**poisoned, zeros=self.guarded("zeros", fresh.zeros))

    def reset(self):
        self.cache.copy_(self.before)
        for tensor in (self.space.q, self.space.query, self.space.o, self.space.lse, self.step.out):
            tensor.fill_(float("nan"))

    def run(self):
        return self.step.run(self.op, self.space, self.launch)

    def defined(self, dtype):
        """(result, cache) of the definition, with operands in `dtype`."""
        q_norm, w_qb, kv_norm, w_uk, w_uv = (w.to(dtype) for w in self.weights.operands)
        s, c = self.step, self.step.context
        cache = self.before.to(dtype)
        query = mla_query(s.q_a.to(dtype), q_norm, w_qb, w_uk, self.spec.eps)
        tables = (c.block_table, c.lengths, c.slots)
        site = {"eps": self.spec.eps, "scale": self.spec.scale}
        o, lse = mla_core(query, s.kv_a.to(dtype), kv_norm, cache, *tables, **site)
        return mla_value(o[None], lse[None], w_uv, s.gate.to(dtype)), cache

    def check(self):
        self.run()
        self.guarded.check()
        exact, _ = self.defined(torch.float64)
        rounded, cache = self.defined(torch.bfloat16)
        differ = (self.cache.view(torch.int16) != cache.view(torch.int16)).sum()
        assert differ <= 0.02 * ROW * len(
            self.step.out
        )  # a norm may round another way, nothing else may change
        assert torch.allclose(self.cache.float(), cache.float(), rtol=2**-7, atol=0, equal_nan=True)
        assert relative_error(self.step.out, exact) < 1.25 * relative_error(rounded, exact) + 1e-3


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(("heads", "tokens"), [(12, 1), (6, 1), (12, 2), (12, 4), (12, 8), (6, 3), (96, 1)])
@pytest.mark.parametrize("requests", [1, 3, 8])
def test_a_step_equals_the_definition(provider, heads, tokens, requests):
    Case(heads, tokens, [8 + 211 * i for i in range(requests)], provider).check()


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("block", [16, 64, 768])
def test_pages_of_any_size(provider, block):
    Case(12, 1, [1, 2, block, block + 1, 1000], provider, block=block).check()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_largest_batch_of_uneven_requests(provider):
    Case(12, 1, [1 + 37 * i % 2000 for i in range(64)], provider).check()


@pytest.mark.parametrize("stages", [3, 4, 5])
@pytest.mark.parametrize("span", [1, 2, 4, 16, 10_000])
def test_every_launch_shape_of_the_core(span, stages):
    Case(12, 1, [5000, 0, 33], "cute", launch=Launch(0, span, stages)).check()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_padding_missing_pages_and_missing_slots(provider):
    """A request of length 0 gives zeros and writes nothing; NaN stays where nobody reads (see `random_step`)."""
    case = Case(12, 1, [0, 1700, 0, 900], provider)
    case.step.context.block_table[1, 1] = -1
    case.step.context.slots[3] = -1
    case.check()
    assert not case.step.out[[0, 2]].any()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_nan_and_large_scores_stay_with_their_request(provider):
    case = Case(12, 1, [300, 400, 500], provider)
    case.step.q_a[1] = float("nan")
    case.step.kv_a[2] *= 100
    case.run()
    assert case.step.out[1].isnan().all() and case.step.out[[0, 2]].isfinite().all()


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("tokens", [1, 4])
def test_one_graph_serves_lengths_that_change_between_replays(provider, tokens):
    case = Case(12, tokens, [900, 1500, tokens, 2000], provider)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    case.run()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        case.run()
    for seed, lengths in enumerate([[tokens] * 4, [2000, 0, 1024, 33], [0] * 4, [1, 1999, 768, 769]], 1):
        other = random_step(case.spec, lengths, seed=seed)
        context, given = case.step.context, other.context
        case.before[: len(given.cache)].copy_(given.cache)
        context.block_table.fill_(-1)
        context.block_table[:, : given.block_table.shape[1]].copy_(given.block_table)
        context.lengths.copy_(given.lengths)
        context.slots.copy_(given.slots)
        case.reset()
        graph.replay()
        torch.cuda.synchronize()
        case.guarded.check()
        exact, _ = case.defined(torch.float64)
        rounded, _ = case.defined(torch.bfloat16)
        assert (
            relative_error(case.step.out, exact) < 1.25 * relative_error(rounded, exact) + 1e-3
            or not exact.any()
        )
        assert case.step.out.isfinite().all()


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(("heads", "tokens"), [(12, 1), (12, 8)])
def test_bits_under_jitter(provider, heads, tokens):
    case = Case(heads, tokens, [700, 0, 3000], provider)
    replayed_bits(case.run, case.reset, [case.step.out, case.cache], replays=100)


def test_settled_pages_change_no_bit():
    waits = Case(12, 1, [700, 3000], "cute")
    early = Case(12, 1, [700, 3000], "cute", overlap=Overlap(True, True))
    assert torch.equal(waits.run(), early.run())
    assert torch.equal(waits.cache.view(torch.int16), early.cache.view(torch.int16))


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize(("tokens", "lengths"), [(1, [3000, 5, 0]), (3, [1000, 3, 777])])
def test_virtual_ranks_merge_to_the_unsharded_attention(provider, ranks, tokens, lengths):
    """All heads over each rank's shard, one after another on one GPU; then merge, W_UV and gate in one launch."""
    spec = MlaDecodeSpec(96, tokens)
    weights = random_weights(spec)
    whole = random_step(spec, lengths, block=64)
    query = torch.randn(len(whole.out), 96, ROW, device="cuda").bfloat16()
    unsharded = whole.context.cache.clone()
    site = {"eps": spec.eps, "scale": spec.scale}
    c = whole.context
    wide = (query.double(), whole.kv_a.double(), weights.kv_norm.double(), unsharded.double())
    exact, _ = mla_core(*wide, c.block_table, c.lengths, c.slots, **site)
    parts, lses = [], []
    for rank in range(ranks):
        op = MlaDecode(replace(spec, ranks=ranks, rank=rank), *weights.operands, provider=provider)
        shard = random_step(op.spec, lengths, block=64)
        for b, n in enumerate(lengths):  # the same rows as the whole context's
            for position in range(rank, max(0, n - tokens), ranks):
                row, page = position // ranks, int(c.block_table[b, position // 64])
                place = int(shard.context.block_table[b, row // 64])
                shard.context.cache[place, row % 64] = unsharded[page, position % 64]
        o = torch.full((len(query), 96, LATENT), float("nan"), device="cuda")
        lse = torch.full((len(query), 96), float("nan"), device="cuda")
        op.attend(query, whole.kv_a, shard.context, op.buffers(len(lengths)), o, lse)
        parts.append(o)
        lses.append(lse)
    o, lse = torch.stack(parts), torch.stack(lses)
    merged, _ = merge_partials(o, lse)
    assert bf16_ulps(merged.bfloat16(), exact) <= 2 or relative_error(merged, exact) < 2e-3
    op.finish(o, lse, whole.gate, whole.out)
    assert (
        torch.equal(whole.out, mla_value(o, lse, weights.operands[4], whole.gate))
        or relative_error(whole.out, mla_value(o, lse, weights.operands[4], whole.gate)) < 2e-3
    )


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_million_tokens(provider):
    """One request; FP64 for sampled heads; then with one row that dominates, then with equal rows."""
    length = 1 << 20
    spec = MlaDecodeSpec(12)
    weights = random_weights(spec)
    op = MlaDecode(spec, *weights.operands, provider=provider)
    step, space = random_step(spec, [length]), op.buffers(1)
    query = op.query(step.q_a, space).clone()
    o, lse = torch.empty(1, 12, LATENT, device="cuda"), torch.empty(1, 12, device="cuda")

    def compare(tolerance):
        op.attend(query, step.kv_a, step.context, space, o, lse)
        rows = step.context.cache[step.context.block_table[0].long()].flatten(0, 1)[:length]
        for head in (0, 7):
            scores = (
                torch.cat([part.double() @ query[0, head].double() for part in rows.split(1 << 17)])
                * spec.scale
            )
            shares = torch.softmax(scores, 0)
            exact = sum(
                share @ part[:, :LATENT].double()
                for share, part in zip(shares.split(1 << 17), rows.split(1 << 17), strict=True)
            )
            assert relative_error(o[0, head], exact) < tolerance
            assert abs(float(lse[0, head] - torch.logsumexp(scores, 0))) < 1e-3

    compare(5e-3)
    step.context.cache[step.context.block_table[0, 700], 5] = query[0, 0] * 4
    compare(5e-3)
    step.context.cache.fill_(0.5)
    step.kv_a.fill_(0.5)
    compare(5e-3)


def test_more_than_2_31_bytes_of_pages_are_addressed():
    """Four requests whose pages lie beyond 2^31 bytes of the cache."""
    spec = MlaDecodeSpec(12)
    weights = random_weights(spec)
    far = random_step(spec, [800, 1, 300, 40], unused=0.0)
    big = torch.zeros(5000, 768, ROW, dtype=torch.bfloat16, device="cuda")
    pages = far.context.cache.shape[0]
    big[-pages:] = far.context.cache
    shift = 5000 - pages
    table = torch.where(far.context.block_table >= 0, far.context.block_table + shift, -1).int()
    moved = replace(far.context, cache=big, block_table=table, slots=far.context.slots + shift * 768)
    for provider in PROVIDERS:
        op = MlaDecode(spec, *weights.operands, provider=provider)
        here = far.run(op, op.buffers(4)).clone()
        far_away = replace_context(far, moved).run(op, op.buffers(4))
        assert torch.equal(here, far_away) and here.shape == (4, 12 * VALUE)


def replace_context(step, context):
    """The same step on other pages."""
    return replace(step, context=context, out=torch.empty_like(step.out))
