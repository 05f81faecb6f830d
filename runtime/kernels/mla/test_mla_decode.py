"""MLA decode without a GPU: how a context is split, which launches a call makes, what is refused before any of them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from runtime.kernels.common.launch import dispatch as common
from runtime.kernels.common.launch.device import H200, Device
from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.mla import dispatch
from runtime.kernels.mla.composed import mla_core, mla_query, mla_value
from runtime.kernels.mla.dispatch import MlaDecode, choose_mla_decode
from runtime.kernels.mla.shapes import HEAD, LATENT, ROW, TILE, VALUE, parts_of, split
from runtime.kernels.mla.sharded import merge_partials, shard_length
from runtime.kernels.mla.spec import Context, MlaDecodeSpec, unsupported

HOPPER = Device(H200, "sm_90a")
LENGTHS = [[1], [0], [0, 0, 5], [200] * 8, [8192], [120_000, 1, 0, 777], [33] * 64, [0, 31, 0, 1 << 20, 0]]


# ---- the split --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ctas", [1, 5, 132])
@pytest.mark.parametrize("span", [1, 4])
@pytest.mark.parametrize(("heads", "tokens"), [(12, 1), (6, 1), (12, 8), (96, 1)])
@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: str(lengths)[:24])
def test_parts_have_places_of_their_own_and_cover_every_tile(lengths, heads, tokens, span, ctas):
    way = split(heads, tokens, span, ctas)
    assert way.groups * way.rows >= heads * tokens > (way.groups - 1) * way.rows
    parts = parts_of(lengths, way)
    places = [place for part in parts for place in part]
    assert len(parts) == len(lengths) * way.groups
    assert len(set(places)) == len(places) and all(0 <= p < way.places(len(lengths)) for p in places)
    for pair, part in enumerate(parts):
        tiles = -(-lengths[pair // way.groups] // TILE)
        assert bool(part) == bool(tiles)
        ctas_of = [place - pair for place in part]
        assert all(0 <= cta < ctas for cta in ctas_of)
        assert len(part) <= max(1, -(-tiles // span) + 1)


def test_a_long_context_beside_short_ones_gets_nearly_all_ctas():
    parts = parts_of([120_000] + [100] * 63, split(12, 1, 4, 132))
    assert len(parts[0]) > 120 and all(len(part) <= 2 for part in parts[1:])


# ---- launches ---------------------------------------------------------------------------------------------


def weights(spec, seed=0):
    torch.manual_seed(seed)
    kv_b = torch.randn(spec.heads, 256, LATENT) / 16
    found = (
        torch.rand(spec.q_rank) + 0.5,
        torch.randn(spec.heads * HEAD, spec.q_rank) / 4,
        torch.rand(LATENT) + 0.5,
        kv_b[:, :128],
        kv_b[:, 128:],
    )
    return [w.bfloat16() for w in found]


def step(spec, lengths, block=16):
    """A step's (q_a, kv_a, gate), context and out; the pages of a request are neighbours."""
    rows = len(lengths) * spec.tokens
    pages = [-(-n // block) for n in lengths]
    table = torch.full((len(lengths), max([1, *pages])), -1, dtype=torch.int32)
    slots, page = [], 1
    for b, n in enumerate(lengths):
        table[b, : pages[b]] = torch.arange(page, page + pages[b])
        slots += [page * block + n - spec.tokens + t if n else -1 for t in range(spec.tokens)]
        page += pages[b]
    projected = torch.randn(rows, spec.q_rank + ROW + spec.heads * VALUE).bfloat16()
    cache = torch.randn(page, block, ROW).bfloat16()
    context = Context(cache, table, torch.tensor(lengths, dtype=torch.int32), torch.tensor(slots).long())
    inputs = projected.split([spec.q_rank, ROW, spec.heads * VALUE], 1)
    return inputs, context, torch.full((rows, spec.heads * VALUE), float("nan")).bfloat16()


def held(spec, lengths):
    """Cache rows of every request on this rank."""
    return [shard_length(n, spec.ranks, spec.rank) for n in lengths.tolist()]


class Recorded:
    """Stands where the launch modules stand: keeps each launch's name and does its work in PyTorch."""

    def __init__(self):
        self.launches = []

    def run_query(self, spec, x, norm, w_qb, q, *, pdl):
        self.launches.append("query")
        self.given, self.eps = (x, norm, w_qb), spec.eps

    def run_absorb(self, q, w_uk, query, *, pdl):
        self.launches.append("absorb")
        query.copy_(mla_query(*self.given, w_uk, self.eps))

    def run(self, spec, way, query, kv_a, norm, cache, table, lengths, slots, o, lse, *zeros, **_):
        self.launches.append("core")
        o.fill_(float("nan"))
        site = {"eps": spec.eps, "scale": spec.scale, "ranks": spec.ranks, "rank": spec.rank}
        whole = mla_core(query, kv_a, norm, cache, table, lengths, slots, **site)
        of_request = way.groups * way.rows
        for pair, part in enumerate(parts_of(held(spec, lengths), way)):
            for number, place in enumerate(part):  # the first part has all, the others see nothing
                rows = [x.unflatten(0, (len(lengths), -1)).flatten(1, 2)[pair // way.groups] for x in whole]
                first = pair % way.groups * way.rows
                mine = [x[first : first + way.rows] for x in rows]
                lse[place] = -torch.inf
                if number == 0:
                    o[place, : len(mine[0])], lse[place, : len(mine[1])] = mine
        assert of_request >= spec.heads * spec.tokens

    def run_value(self, spec, way, o, lse, lengths, w_uv, gate, out, *, shards=0, pdl):
        self.launches.append("value")
        if not shards:
            o, lse = self._gather(spec, way, o, lse, lengths)
        out.copy_(mla_value(o, lse, w_uv, gate))

    def run_merge(self, spec, way, o, lse, lengths, merged, merged_lse, *, pdl):
        self.launches.append("merge")
        found = merge_partials(*self._gather(spec, way, o, lse, lengths))
        merged.copy_(found[0])
        merged_lse.copy_(found[1])

    def _gather(self, spec, way, o, lse, lengths):
        parts = parts_of(held(spec, lengths), way)
        most = max([1, *map(len, parts)])
        rows, count = spec.heads * spec.tokens, len(lengths) * spec.tokens
        found = torch.zeros(most, len(lengths), rows, LATENT)
        found_lse = torch.full((most, len(lengths), rows), -torch.inf)
        for pair, part in enumerate(parts):
            first = pair % way.groups * way.rows
            for number, place in enumerate(part):
                used = min(way.rows, rows - first)
                found[number, pair // way.groups, first : first + used] = o[place, :used]
                found_lse[number, pair // way.groups, first : first + used] = lse[place, :used]
        return found.view(most, count, spec.heads, LATENT), found_lse.view(most, count, spec.heads)


@pytest.fixture
def recorded(monkeypatch):
    import sys

    found = Recorded()
    for name in ("triton_core", "triton_sides", "cute_launch"):
        monkeypatch.setitem(sys.modules, f"runtime.kernels.mla.{name}", found)
        monkeypatch.setattr(f"runtime.kernels.mla.{name}", found, raising=False)
    monkeypatch.setattr("runtime.kernels.common.launch.dispatch.missing_packages", lambda *modules: ())
    return found


@pytest.mark.parametrize(("heads", "tokens"), [(12, 1), (6, 3), (12, 8)])
def test_a_call_is_four_launches_and_the_composed_step(recorded, heads, tokens):
    spec = MlaDecodeSpec(heads, tokens, q_rank=64)
    operands = weights(spec)
    op = MlaDecode(spec, *operands)
    lengths = [tokens, 0, 70, 33]
    inputs, context, out = step(spec, lengths)
    expected = composed(spec, operands, inputs, replace(context, cache=context.cache.clone()))
    assert op(*inputs, context, op.buffers(4), out) is out
    assert recorded.launches == ["query", "absorb", "core", "value"]
    assert torch.equal(out, expected)


def composed(spec, operands, inputs, context):
    q_norm, w_qb, kv_norm, w_uk, w_uv = operands
    query = mla_query(inputs[0], q_norm, w_qb, w_uk, spec.eps)
    tables = (context.cache, context.block_table, context.lengths, context.slots)
    o, lse = mla_core(query, inputs[1], kv_norm, *tables, eps=spec.eps, scale=spec.scale)
    return mla_value(o[None], lse[None], w_uv, inputs[2])


def test_the_sharded_form_is_two_launches_then_one(recorded):
    spec = MlaDecodeSpec(12, 1, q_rank=64)
    operands = weights(spec)
    op = MlaDecode(spec, *operands)
    inputs, context, out = step(spec, [40, 0, 3])
    query = mla_query(inputs[0], operands[0], operands[1], operands[3], spec.eps)
    o, lse = torch.zeros(3, 12, LATENT), torch.zeros(3, 12)
    op.attend(query, inputs[1], context, op.buffers(3), o, lse)
    assert recorded.launches == ["core", "merge"] and (lse[1] == -torch.inf).all()
    op.finish(
        torch.stack([o, torch.full_like(o, torch.nan)]), torch.stack([lse, lse - torch.inf]), inputs[2], out
    )
    assert recorded.launches == ["core", "merge", "value"]
    assert torch.equal(out, mla_value(o[None], lse[None], operands[4], inputs[2]))


def test_an_empty_step_launches_nothing(recorded):
    spec = MlaDecodeSpec(12, 1, q_rank=64)
    op = MlaDecode(spec, *weights(spec))
    inputs, context, out = step(spec, [])
    op(*inputs, context, op.buffers(1), out)
    assert recorded.launches == []


# ---- choice and refusals ----------------------------------------------------------------------------------


def test_automatic_choice_takes_the_fallback_where_nothing_was_measured(recorded):
    choice = choose_mla_decode(MlaDecodeSpec(12), HOPPER)
    assert choice.variant == "triton" and f"never measured on {H200}" in choice.reason
    assert choose_mla_decode(MlaDecodeSpec(12), HOPPER, "cute").variant == "cute"
    with common.strict(), pytest.raises(common.FallbackError, match="never measured"):
        choose_mla_decode(MlaDecodeSpec(12), HOPPER)


def test_every_reason_is_given_at_once():
    bad = MlaDecodeSpec(0, 9, q_rank=20, scale=float("nan"), ranks=2, rank=2)
    assert len(unsupported(bad, "sm_80")) == 6
    with pytest.raises(ValueError, match=r"heads 0.*tokens 9.*q_rank 20.*scale nan.*rank 2"):
        MlaDecode(bad, *weights(MlaDecodeSpec(1, q_rank=32)))


def changed(context, **changes):
    return replace(context, **{name: change(getattr(context, name)) for name, change in changes.items()})


BAD = {
    "cache of another width": ({"cache": lambda x: x[..., :512].contiguous()}, "cache must be of shape"),
    "cache in FP32": ({"cache": lambda x: x.float()}, "cache must be torch.bfloat16"),
    "a table of int64": ({"block_table": lambda x: x.long()}, "block_table must be torch.int32"),
    "a table of fewer requests": ({"block_table": lambda x: x[:1]}, "block_table must be of shape 2"),
    "lengths of int64": ({"lengths": lambda x: x.long()}, "lengths must be torch.int32"),
    "slots of int32": ({"slots": lambda x: x.int()}, "slots must be torch.int64"),
    "a slot too few": ({"slots": lambda x: x[:1]}, "slots must be of shape 2"),
    "pages without rows": ({"cache": lambda x: x[:, :0]}, "cache must be of at least one row"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_pages_and_tables_that_do_not_fit_are_refused_before_any_launch(recorded, change, message):
    spec = MlaDecodeSpec(12, 1, q_rank=64)
    op = MlaDecode(spec, *weights(spec))
    inputs, context, out = step(spec, [5, 9])
    with pytest.raises(ValueError, match=message):
        op(*inputs, changed(context, **change), op.buffers(2), out)
    assert recorded.launches == []


def test_what_does_not_fit_the_call_is_refused_before_any_launch(recorded):
    spec = MlaDecodeSpec(12, 1, q_rank=64)
    op = MlaDecode(spec, *weights(spec))
    inputs, context, out = step(spec, [5, 9])
    space = op.buffers(2)
    with pytest.raises(ValueError, match="out must be of shape 2 x 1536"):
        op(*inputs, context, space, out[:1])
    with pytest.raises(ValueError, match="q_a must be of shape 2 x 64"):
        op(inputs[0][:, :32], *inputs[1:], context, space, out)
    with pytest.raises(ValueError, match="places"):
        op(*inputs, context, replace(space, o=space.o[:100]), out)
    many, more, wide = step(spec, [1] * 65)
    with pytest.raises(ValueError, match="at most 64 requests"):
        op(*many, more, op.buffers(65), wide)
    with pytest.raises(ValueError, match="attend"):
        MlaDecode(replace(spec, ranks=2), *weights(spec))(*inputs, context, space, out)
    assert recorded.launches == []


def test_after_prepare_no_call_of_the_core_compiles(monkeypatch):
    compiled = set()
    later = SimpleNamespace(compiled=lambda *key: compiled.add(key))
    import sys

    monkeypatch.setitem(sys.modules, "runtime.kernels.mla.cute_launch", later)
    monkeypatch.setattr("runtime.kernels.mla.cute_launch", later, raising=False)
    op = object.__new__(MlaDecode)
    op.spec, op._device, op.w_qb = MlaDecodeSpec(12, 2, overlap=Overlap(True)), HOPPER, torch.empty(0)
    op.choice = common.Choice("mla_decode", "cute", "")
    op.prepare(32)
    for requests in range(1, 33):
        launch = op.launch(2 * requests)
        assert (op.spec, op.split(launch), launch.stages, "sm_90a") in compiled
    assert frozenset() == dispatch.MEASURED_ON
