"""A step on pages against the oracle in FP64: the whole half, padding, missing pages, ranks, what is written."""

import numpy as np
import pytest
import torch

from runtime.kernels.mla import oracle
from runtime.kernels.mla.composed import mla_core, mla_query, mla_value
from runtime.kernels.mla.sharded import merge_partials, shard_length

N, DN, DR, L, DV, R = 3, 8, 4, 20, 6, 16
SCALE, EPS, BLOCK = (DN + DR) ** -0.5, 1e-5, 4


class Step:
    """Random operands of one step in FP64, and pages that hold NaN wherever nothing is stored."""

    def __init__(self, lengths, tokens, ranks=1, rank=0, seed=0):
        generator = torch.Generator().manual_seed(seed)

        def rand(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.lengths, self.tokens, self.ranks, self.rank = lengths, tokens, ranks, rank
        rows = len(lengths) * tokens
        self.q_a, self.kv_a, self.gate = rand(rows, R), rand(rows, L + DR), rand(rows, N * DV)
        self.q_norm, self.kv_norm = rand(R).abs() + 0.5, rand(L).abs() + 0.5
        self.w_qb, self.w_uk, self.w_uv = rand(N * (DN + DR), R), rand(N, DN, L), rand(N, DV, L)
        self.past = [rand(max(0, length - tokens), L + DR) for length in lengths]
        self._pages()

    def _pages(self):
        local = [shard_length(n, self.ranks, self.rank) for n in self.lengths]
        pages = [-(-n // BLOCK) for n in local]
        self.cache = torch.full((sum(pages) + 2, BLOCK, L + DR), float("nan"), dtype=torch.float64)
        self.table = torch.full((len(local), max([1, *pages]) + 1), -1, dtype=torch.int32)
        order = (torch.randperm(sum(pages), generator=torch.Generator().manual_seed(1)) + 1).tolist()
        slots = []
        for b, length in enumerate(self.lengths):
            for i in range(pages[b]):
                self.table[b, i] = order.pop()
            for position in range(length - self.tokens, length):
                here = position >= 0 and position % self.ranks == self.rank
                slots.append(self.place(b, position // self.ranks) if here else -1)
            for position in range(self.rank, length - self.tokens, self.ranks):
                self.cache.view(-1, L + DR)[self.place(b, position // self.ranks)] = self.past[b][position]
        self.slots = torch.tensor(slots, dtype=torch.int64)

    def place(self, b, row):
        return int(self.table[b, row // BLOCK]) * BLOCK + row % BLOCK

    def core(self):
        query = mla_query(self.q_a, self.q_norm, self.w_qb, self.w_uk, EPS)
        lengths = torch.tensor(self.lengths, dtype=torch.int32)
        site = {"eps": EPS, "scale": SCALE, "ranks": self.ranks, "rank": self.rank}
        tables = (self.table, lengths, self.slots)
        return mla_core(query, self.kv_a, self.kv_norm, self.cache, *tables, **site)

    def expected(self):
        """The gated values and LSEs of the oracle, with nothing absorbed and nothing paged."""
        q_a, kv_a, q_norm, kv_norm = (x.numpy() for x in (self.q_a, self.kv_a, self.q_norm, self.kv_norm))
        q = (oracle.rms_norm(q_a, q_norm, EPS) @ self.w_qb.numpy().T).reshape(-1, N, DN + DR)
        new = np.concatenate([oracle.rms_norm(kv_a[:, :L], kv_norm, EPS), kv_a[:, L:]], 1)
        values, lses = [], []
        for b, length in enumerate(self.lengths):
            mine = slice(b * self.tokens, (b + 1) * self.tokens)
            first = length - self.tokens
            rows = np.concatenate([self.past[b].numpy(), new[mine][max(0, -first) :]])[: max(length, 0)]
            visible = np.arange(len(rows)) <= first + np.arange(self.tokens)[:, None]
            value, lse = oracle.expanded(q[mine], rows, self.w_uk.numpy(), self.w_uv.numpy(), visible, SCALE)
            values.append(value)
            lses.append(lse)
        gate = 1 / (1 + np.exp(-self.gate.numpy()))
        return np.concatenate(values).reshape(len(gate), -1) * gate, np.concatenate(lses)


CASES = [([1], 1), ([9], 1), ([5, 0, 13, 1], 1), ([3, 40], 3), ([8, 2, 0], 2), ([17], 8), ([1, 6], 2)]


@pytest.mark.parametrize(("lengths", "tokens"), CASES, ids=str)
def test_a_step_is_the_expanded_attention(lengths, tokens):
    """Requests of length 0 are padding, one of length 1 with two tokens has a first token that sees nothing."""
    step = Step(lengths, tokens)
    o, lse = step.core()
    out = mla_value(o[None], lse[None], step.w_uv, step.gate)
    values, lses = step.expected()
    np.testing.assert_allclose(out.numpy(), values, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(lse.numpy(), lses, rtol=1e-9)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize(("lengths", "tokens"), CASES, ids=str)
def test_the_ranks_of_a_sharded_context_merge_to_the_same(lengths, tokens, ranks):
    steps = [Step(lengths, tokens, ranks, rank) for rank in range(ranks)]
    o, lse = (torch.stack(part) for part in zip(*(step.core() for step in steps), strict=True))
    values, lses = steps[0].expected()
    out = mla_value(o, lse, steps[0].w_uv, steps[0].gate)
    np.testing.assert_allclose(out.numpy(), values, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(merge_partials(o, lse)[1].numpy(), lses, rtol=1e-9)


def test_only_the_new_rows_are_written():
    step = Step([6, 0, 9], 2)
    before = step.cache.clone()
    step.core()
    rows, old = step.cache.flatten(0, 1), before.flatten(0, 1)
    changed = ((rows != old) & ~(rows.isnan() & old.isnan())).any(1).nonzero().flatten().tolist()
    assert changed == sorted(slot for slot in step.slots.tolist() if slot >= 0)


def test_a_new_row_without_a_slot_is_attended_to_and_not_stored():
    stored, kept = Step([7], 1), Step([7], 1)
    kept.slots[:] = -1
    assert torch.equal(stored.core()[0], kept.core()[0])
    assert kept.cache.flatten(0, 1)[stored.slots[0]].isnan().all()


def test_a_page_that_is_missing_is_as_if_its_rows_had_never_been():
    step = Step([11], 1)
    step.table[0, 1] = -1
    o, _ = step.core()
    other = Step([11], 1)
    other.past[0] = torch.cat([other.past[0][:4], other.past[0][8:]])
    other.lengths = [7]
    other._pages()
    torch.testing.assert_close(o, other.core()[0])
