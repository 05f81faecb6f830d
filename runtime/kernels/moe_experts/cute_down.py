"""Down products of the routed experts and the weighted sum of each token's experts (device code).

The 64-row blocks of the latent are the grid's columns; `shares` CTAs of a block take the groups of tokens in turn, a
warp at a time with all columns of the weight. An expert's row is rounded to BF16 and left in `partial`, which stays in
the L2 cache. The last CTA of a block to finish adds the rows of every token in the order of its slots, in FP32 with
FP32 weights, and writes the latent once; it also resets the block's counter for the next launch. So a token's bits
do not depend on the other tokens, nor on which CTA was last.

The groups must be settled: this kernel follows `ExpertsGateUp`, which waits for everything before it. Its first
weights are requested before the dependency wait.
"""

import cutlass
from cutlass import Float32, Int32, Int64, Uint32, cute

from runtime.kernels.common.launch.cute_ops import (
    WARP,
    count_up,
    fma,
    load_float,
    load_int,
    load_published,
    load_shared_word,
    pack,
    prefetch_bulk,
    reset_counter,
    shared_bytes,
    store_bf16,
    store_shared_word,
    store_words,
    unpack,
)
from runtime.kernels.moe_experts.cute_mxfp4 import BLOCK_WORDS, GROUP
from runtime.kernels.moe_experts.cute_stream import SCALE_WORDS, WeightStream

BATCH = 16  # rows that a thread of the last CTA has on their way at a time


class ExpertsDown(WeightStream):
    """One launch; the constructor's arguments are compile-time.

    latent: rows of the weight. width: its columns. slots: experts of a token. warps: per CTA. shares: CTAs of a block.
    resident: CTAs that may share a multiprocessor. depth: steps of 32 columns that a warp is ahead. prefetch: whether a
    warp brings its whole first job to the L2 cache before the dependency wait. settled is always true; early_trigger:
    see `Overlap`.
    """

    settled = True

    def __init__(
        self, latent, width, slots, warps, shares, resident, depth, prefetch=False, early_trigger=False
    ):
        super().__init__(width, latent // 64, 0, width // GROUP, depth, slots, True)
        self.latent, self.warps, self.shares, self.resident = latent, warps, shares, resident
        self.early_trigger, self.prefetch = early_trigger, prefetch
        self.threads = warps * WARP
        self.smem_bytes = shared_bytes(64, resident)

    @cute.jit
    def __call__(
        self,
        hidden,
        w,
        scales,
        experts,
        rows,
        count,
        ids,
        weights,
        partial,
        counters,
        out,
        first,
        local,
        place,
        stream,
    ):
        """hidden, w [E, I/16, 2 K] int32, scales [E, I/32, K/4] int32, groups, place as for `ExpertsGateUp`.

        ids, weights [T, slots]; partial [P, K] BF16; counters [K/64] int32, zero before and after; out [T, K] BF16.
        first, local: the experts of this rank; slots of others, and negative ids, add nothing.
        """
        self.kernel(
            hidden, w, scales, experts, rows, count, ids, weights, partial, counters, out, first, local, place
        ).launch(
            grid=(self.latent // 64, self.shares, 1),
            block=(self.threads, 1, 1),
            smem=self.smem_bytes,
            stream=stream,
            use_pdl=True,
            min_blocks_per_mp=self.resident,
            preferred_smem_carveout=-1,  # the driver's choice; without a value the DSL asks the driver
        )

    @cute.kernel
    def kernel(
        self,
        hidden: cute.Tensor,
        w: cute.Tensor,
        scales: cute.Tensor,
        experts: cute.Tensor,
        rows: cute.Tensor,
        count: cute.Tensor,
        ids: cute.Tensor,
        weights: cute.Tensor,
        partial: cute.Tensor,
        counters: cute.Tensor,
        out: cute.Tensor,
        first: Int32,
        local: Int32,
        place: Int32,
    ):
        block, share, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        lane, warp = thread % WARP, cute.arch.make_warp_uniform(thread // WARP)
        smem = cutlass.utils.SmemAllocator()
        verdict = smem.allocate_tensor(Int32, cute.make_layout(4), 16).iterator
        if cutlass.const_expr(self.early_trigger):
            cute.arch.griddepcontrol_launch_dependents()

        # Neighbouring CTAs take neighbouring groups, so that the streams of a block are busy alike.
        group, streams = warp * self.shares + share, self.warps * self.shares
        groups = load_int(count.iterator)
        buffers = self._buffers(place)
        row = self._expert_row(experts, group, group < groups)
        if group < groups:
            for d in cutlass.range_constexpr(self.depth):
                self._request(w, scales, row, block, d, lane, buffers)
        at = self._token_at(hidden, rows, group, groups, lane)
        if cutlass.const_expr(self.prefetch):
            if group < groups:
                self._bring(w, scales, row, block)
        self._wait()
        if group < groups:
            for d in cutlass.range_constexpr(self.depth):
                self._request_tokens(hidden, at, d, buffers)

        while group < groups:
            following = group + streams
            more = following < groups
            next_row = self._expert_row(experts, following, more)
            next_at = self._token_at(hidden, rows, following, groups, lane)
            job, next_job = (row, block, at), (next_row, block, next_at)
            self._job(w, scales, hidden, job, next_job, more, lane, buffers)
            self._store(buffers[3], rows, partial, group, block, lane)
            group, row, at = following, next_row, next_at

        cute.arch.sync_threads()
        if thread == 0:
            store_shared_word(verdict, count_up(counters.iterator + block))
        cute.arch.sync_threads()
        if Int32(load_shared_word(verdict)) == self.shares - 1:
            self._finish(ids, weights, partial, out, first, local, block, thread)
            if thread == 0:
                reset_counter(counters.iterator + block)

    @cute.jit
    def _bring(self, w, scales, row, block):
        """Bring what is left of the first job to the L2 cache."""
        with cute.arch.elect_one():
            for step in cutlass.range(self.depth, self.steps, unroll=1):
                for half in cutlass.range_constexpr(2):
                    at = (2 * (row + step) + half) * self.row_blocks + block
                    prefetch_bulk(w.iterator + Int64(at) * BLOCK_WORDS, 4 * BLOCK_WORDS)
                at = (row + step) * self.row_blocks + block
                prefetch_bulk(scales.iterator + Int64(at) * SCALE_WORDS, 4 * SCALE_WORDS)

    @cute.jit
    def _token_at(self, hidden, rows, group, groups, lane):
        """Where the lane's first word of its pair's hidden row is."""
        pair = self._token(rows, group, group < groups, lane)
        return pair * Int32(hidden.stride[0]) + lane % 4 * 8

    @cute.jit
    def _store(self, sums, rows, partial, group, block, lane):
        """Leave the group's rows, rounded to BF16: lane (g, t) holds rows g + 8 i of tokens 2t and 2t + 1, i = 0 … 7.

        In `partial` the eight of a lane are together: column g + 8 i of a block stands at 8 g + i.
        """
        g, t = lane // 4, lane % 4
        for j in cutlass.range_constexpr(2):
            pair = load_int(rows.iterator + group * 8 + 2 * t + j)
            if pair >= 0:
                values = [sums[i // 2, j + 2 * (i % 2)] for i in range(8)]
                store_words(partial.iterator + Int64(pair) * self.latent + block * 64 + 8 * g, pack(values))

    @cute.jit
    def _finish(self, ids, weights, partial, out, first, local, block, thread):
        """Add up the block's columns of every token, a thread columns g + 8 i of a token (see `_store`)."""
        g, token = thread % 8, thread // 8
        while token < out.shape[0]:
            total = (Float32(0),) * 8
            for start in cutlass.range_constexpr(0, self.slots, BATCH):
                pair = token * self.slots + start
                batch: cutlass.Constexpr = min(BATCH, self.slots - start)
                source = partial.iterator + Int64(pair) * self.latent + block * 64 + 8 * g
                rows = [load_published(source + i * self.latent) for i in range(batch)]
                experts = [load_int(ids.iterator + pair + i) - first for i in range(batch)]
                shares = [load_float(weights.iterator + pair + i) for i in range(batch)]
                for i in cutlass.range_constexpr(batch):
                    here = (experts[i] >= 0) & (experts[i] < local)
                    weight = shares[i] if here else Float32(0)
                    words = [word if here else Uint32(0) for word in rows[i]]
                    total = tuple(fma(weight, v, s) for v, s in zip(unpack(words), total, strict=True))
            place = out.iterator + Int64(token) * out.stride[0] + block * 64 + g
            for i in cutlass.range_constexpr(8):
                store_bf16(place + 8 * i, total[i])
            token += self.threads // 8
