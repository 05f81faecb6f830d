"""Which tiles of a step a CTA has, and the requests for them (device code).

Cache rows go to a ring of stages, a bulk copy of 1152 bytes a lane; there rows are 1168 bytes apart, so that `ldmatrix`
has no bank conflicts. Rows that are not there, behind the length or on a missing page, are copied from a row of zeros,
so nothing stale meets a weight of zero. So are rows of this step, which are laid over their places later.
"""

import cutlass
from cutlass import Int32, Int64, cute

from runtime.kernels.common.launch.cute_matrices import choose_address
from runtime.kernels.common.launch.cute_ops import WARP, copy_bulk, load_int, store_shared_word
from runtime.kernels.mla.shapes import ROW, TILE

PITCH = ROW + 8  # elements between rows in shared memory
ROW_BYTES = 2 * ROW


class CoreRequests:
    """What needs no arithmetic; the kernel sets heads, tokens, rows, groups and stages."""

    heads: int
    tokens: int
    rows: int
    groups: int
    stages: int

    @cute.jit
    def _held_rows(self, length, ranks, rank):
        """Cache rows of a request that this rank holds."""
        return (length - rank + ranks - 1) // ranks

    @cute.jit
    def _plan(self, lengths, cta, ctas, span, ranks, rank, lane):
        """Lane l knows requests l and l + 32: their lengths and where their tiles end. With it this CTA's run."""
        low = load_int(lengths.iterator + lane) if lane < lengths.shape[0] else Int32(0)
        high = load_int(lengths.iterator + WARP + lane) if lane + WARP < lengths.shape[0] else Int32(0)
        end_low = (self._held_rows(low, ranks, rank) + TILE - 1) // TILE * self.groups
        end_high = (self._held_rows(high, ranks, rank) + TILE - 1) // TILE * self.groups
        for step in cutlass.range_constexpr(5):
            before = cute.arch.shuffle_sync(end_low, (lane - (1 << step)) & 31)
            end_low += before if lane >= 1 << step else Int32(0)
            before = cute.arch.shuffle_sync(end_high, (lane - (1 << step)) & 31)
            end_high += before if lane >= 1 << step else Int32(0)
        end_high += cute.arch.shuffle_sync(end_low, 31)
        total = cute.arch.shuffle_sync(end_high, 31)
        run = cutlass.max(span, (total + ctas - 1) // ctas)
        first = cta * run
        return low, high, end_low, end_high, first, cutlass.min(first + run, total)

    @cute.jit
    def _pair(self, plan, tile, ranks, rank):
        """The pair of a tile: request, length, group, and its tiles from this one to the run's last."""
        low, high, end_low, end_high, _, stop = plan
        ended = cute.arch.popc(cute.arch.vote_ballot_sync(end_low <= tile))
        request = ended + cute.arch.popc(cute.arch.vote_ballot_sync(end_high <= tile))
        length, end = cute.arch.shuffle_sync(low, request & 31), cute.arch.shuffle_sync(end_low, request & 31)
        other, other_end = (
            cute.arch.shuffle_sync(high, request & 31),
            cute.arch.shuffle_sync(end_high, request & 31),
        )
        length = other if request >= WARP else length
        end = other_end if request >= WARP else end
        tiles = (self._held_rows(length, ranks, rank) + TILE - 1) // TILE
        begin = tile - (end - tiles * self.groups)
        group = begin // tiles
        first = begin - group * tiles
        return request, length, group, first, cutlass.min(tiles, first + stop - tile)

    @cute.jit
    def _request_cache(self, plan, cache, table, zeros, ring, present, full, free, ranks, rank, lane):
        """Fill stage after stage; `present` says which rows of it are there, those of this step included."""
        tile, stop = plan[4], plan[5]
        stage, phase = Int32(0), Int32(1)  # a new barrier lets the phase before it pass
        while tile < stop:
            request, length, _, first, last = self._pair(plan, tile, ranks, rank)
            held = self._held_rows(length, ranks, rank)
            for i in cutlass.range(first, last, unroll=1):
                row = i * TILE + lane
                inside = row < held
                position, first_new = row * ranks + rank, length - self.tokens
                old, new = inside & (position < first_new), inside & (position >= first_new)
                safe = row if inside else Int32(0)
                block = safe // cache.shape[1]
                page = load_int(table.iterator + Int64(request) * table.stride[0] + block)
                there = old & (page >= 0)
                offset = (
                    Int64(page) * cache.stride[0] + Int64(safe - block * cache.shape[1]) * cache.stride[1]
                )
                source = choose_address(
                    there, cache.iterator + (offset if there else Int64(0)), zeros.iterator
                )
                seen = cute.arch.vote_ballot_sync(there | new)
                cute.arch.mbarrier_wait(free + stage, phase)
                if lane == 0:
                    store_shared_word(present + stage, seen)
                    cute.arch.mbarrier_arrive_and_expect_tx(full + stage, TILE * ROW_BYTES)
                cute.arch.sync_warp()
                copy_bulk(ring + (stage * TILE + lane) * PITCH, source, ROW_BYTES, full + stage)
                stage += 1
                if stage == self.stages:
                    stage, phase = Int32(0), phase ^ 1
            tile += last - first

    @cute.jit
    def _request_queries(self, plan, query, zeros, q_rows, q_full, ranks, rank, lane):
        """Bring the query rows of pair after pair; rows past the request's last are zeros."""
        tile, stop, phase = plan[4], plan[5], Int32(1)
        rows: cutlass.Constexpr = self.heads * self.tokens
        while tile < stop:
            request, _, group, first, last = self._pair(plan, tile, ranks, rank)
            cute.arch.mbarrier_wait(q_full + 1, phase)
            if lane == 0:
                cute.arch.mbarrier_arrive_and_expect_tx(q_full, self.rows * ROW_BYTES)
            cute.arch.sync_warp()
            for step in cutlass.range_constexpr(-(-self.rows // WARP)):
                place = step * WARP + lane
                row = group * self.rows + place
                inside = row < rows
                offset = Int64(request * rows + (row if inside else Int32(0))) * ROW
                source = choose_address(inside, query.iterator + offset, zeros.iterator)
                if place < self.rows:
                    copy_bulk(q_rows + place * PITCH, source, ROW_BYTES, q_full)
            phase ^= 1
            tile += last - first
