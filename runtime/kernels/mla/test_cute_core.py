"""The CuTe core's device code, thread by thread on the CPU (`simt`), against the definition on BF16 pages."""

from pathlib import Path

import pytest
import torch

from runtime.kernels.common.workshop.simt import Cta, load_kernel
from runtime.kernels.common.workshop.simt_memory import Tensor
from runtime.kernels.mla.composed import mla_core
from runtime.kernels.mla.shapes import LATENT, ROW, parts_of, split
from runtime.kernels.mla.sharded import merge_partials, shard_length

HERE = Path(__file__).parent
LOG2E = 1.4426950408889634
EPS, SCALE, BLOCK = 0.3, 0.02, 24


class Step:
    """Random BF16 operands of one step; pages hold NaN wherever a request has no row."""

    def __init__(self, heads, tokens, lengths, ranks=1, rank=0, seed=0):
        torch.manual_seed(seed)
        self.heads, self.tokens, self.lengths, self.ranks, self.rank = heads, tokens, lengths, ranks, rank
        rows = len(lengths) * tokens
        self.query = torch.randn(rows, heads, ROW).bfloat16()
        self.kv_a = torch.randn(rows, ROW + 16).bfloat16()[:, 8 : 8 + ROW]
        self.norm = (torch.rand(LATENT) + 0.5).bfloat16()
        self.held = [shard_length(n, ranks, rank) for n in lengths]
        pages = [-(-n // BLOCK) for n in self.held]
        self.cache = torch.full((sum(pages) + 2, BLOCK, ROW), float("nan")).bfloat16()
        self.table = torch.full((len(lengths), max([1, *pages])), -1, dtype=torch.int32)
        order, slots = (torch.randperm(sum(pages)) + 1).tolist(), []
        for b, n in enumerate(lengths):
            self.table[b, : pages[b]] = torch.tensor([order.pop() for _ in range(pages[b])])
            for position in range(rank, n - tokens, ranks):
                row = position // ranks
                self.cache[self.table[b, row // BLOCK], row % BLOCK] = torch.randn(ROW).bfloat16()
            for position in range(n - tokens, n):
                row, here = position // ranks, position >= 0 and position % ranks == rank
                slots.append(int(self.table[b, row // BLOCK]) * BLOCK + row % BLOCK if here else -1)
        self.slots = torch.tensor(slots)

    def simulated(self, ctas, span=1, stages=None, settled=False, seed=0):
        """What the kernel leaves: (o, lse) merged over its parts, and the cache."""
        paths = [HERE / "cute_requests.py", HERE / "cute_core.py"]
        way = split(self.heads, self.tokens, span, ctas)
        kernel = load_kernel(paths, "MlaCoreKernel")(self.heads, self.tokens, way.rows, stages, settled)
        places, cache = way.places(len(self.lengths)), self.cache.clone()
        o = torch.full((places, way.rows, LATENT), float("nan"))
        lse = torch.full((places, way.rows), float("nan"))
        tensors = {
            "query": self.query, "kv_a": self.kv_a, "norm": self.norm, "cache": cache, "table": self.table,
            "lengths": torch.tensor(self.lengths, dtype=torch.int32), "slots": self.slots.view(torch.int32),
            "o": o, "lse": lse, "zeros": torch.zeros(ROW).bfloat16(),
        }  # fmt: skip
        arguments = [Tensor(tensor, name) for name, tensor in tensors.items()]
        numbers = (span, self.ranks, self.rank, EPS, SCALE * LOG2E)
        for index in range(ctas):
            Cta(320, index, ctas, 232448, seed + index).run(kernel.kernel, *arguments, *numbers)
        return self._gather(way, o, lse), cache

    def _gather(self, way, o, lse):
        """The parts of every pair merged; every place that no part has is untouched."""
        parts = parts_of(self.held, way)
        used = {place for part in parts for place in part}
        assert {p for p in range(len(lse)) if not lse[p].isnan().all()} == used
        rows = self.heads * self.tokens
        merged = torch.zeros(len(self.lengths), way.groups * way.rows, LATENT)
        merged_lse = torch.full((len(self.lengths), way.groups * way.rows), -torch.inf)
        for pair, part in enumerate(parts):
            if part:
                where = slice(pair % way.groups * way.rows, (pair % way.groups + 1) * way.rows)
                found = merge_partials(o[list(part)], lse[list(part)])
                merged[pair // way.groups, where], merged_lse[pair // way.groups, where] = found
        shape = (len(self.lengths) * self.tokens, self.heads)
        return merged[:, :rows].reshape(*shape, LATENT), merged_lse[:, :rows].reshape(shape)

    def check(self, **launch):
        (o, lse), cache = self.simulated(**launch)
        expected_cache, lengths = self.cache.clone(), torch.tensor(self.lengths)
        exact, exact_lse = mla_core(
            self.query, self.kv_a, self.norm, expected_cache, self.table, lengths, self.slots,
            eps=EPS, scale=SCALE, ranks=self.ranks, rank=self.rank,
        )  # fmt: skip
        assert torch.equal(cache.view(torch.int16), expected_cache.view(torch.int16))
        torch.testing.assert_close(lse, exact_lse, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(o, exact, rtol=2**-7, atol=2**-8)  # weights are rounded to BF16
        return o, lse


def test_a_short_context_with_padding_and_nothing_before_it():
    Step(12, 1, [40, 0, 1]).check(ctas=2)


def test_parts_of_several_ctas_a_ring_that_wraps_and_a_run_over_two_requests():
    Step(12, 1, [97, 40], seed=1).check(ctas=2, stages=3)


def test_verify_rows_see_only_what_is_before_them():
    """24 query rows fill one and a half fragments; the first token of the second request sees nothing."""
    Step(6, 4, [30, 3], seed=2).check(ctas=1)


@pytest.mark.slow
def test_a_shard_of_an_interleaved_context():
    Step(3, 2, [70, 1, 2], ranks=3, rank=1, seed=3).check(ctas=2)


@pytest.mark.slow
def test_a_missing_page_a_row_without_a_slot_and_settled_reads():
    step = Step(12, 1, [60, 40], seed=4)
    step.table[0, 1] = -1
    step.slots[1] = -1
    step.check(ctas=2, settled=True)


@pytest.mark.slow
def test_a_request_in_the_second_half_of_the_plan():
    Step(6, 1, [0] * 40 + [9, 0, 33], seed=5).check(ctas=2)


@pytest.mark.slow
def test_nan_stays_with_its_head_and_large_scores_do_not_overflow():
    step = Step(12, 1, [33], seed=6)
    step.query[0, 3] = float("nan")
    step.query[0, 4] *= 3000
    (o, lse), _ = step.simulated(ctas=1)
    others = [h for h in range(12) if h != 3]
    assert o[0, 3].isnan().all() and o[0, others].isfinite().all()
    assert lse[0, 4].abs() > 1000


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_order_things_happen_in_the_bits_are_the_same(seed):
    step = Step(12, 1, [97, 0, 40], seed=1)
    first, again = step.simulated(ctas=3, stages=3), step.simulated(ctas=3, stages=3, seed=100 * seed)
    assert torch.equal(first[0][0], again[0][0]) and torch.equal(first[0][1], again[0][1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heads", "tokens", "lengths", "ranks", "rank"),
    [
        (12, 8, [90, 0, 8], 1, 0),
        (96, 1, [40], 1, 0),
        (6, 1, [250], 1, 0),
        (6, 8, [9, 31, 33], 1, 0),
        (12, 2, [65] * 3, 2, 1),
        (96, 1, [70, 3], 8, 7),
    ],
    ids=str,
)
@pytest.mark.parametrize("ctas", [1, 5])
def test_every_shape_equals_the_definition(heads, tokens, lengths, ranks, rank, ctas):
    Step(heads, tokens, lengths, ranks, rank).check(ctas=ctas)
