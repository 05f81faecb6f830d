"""The attention core: this step's cache rows, and attention over the pages, split over the context (device code).

A CTA of the persistent grid takes an equal run of all tiles of the step (`shapes`): 32 cache rows of one request, for
one group of its query rows. Ten warps. Two request rows (`cute_requests`). Eight multiply: for the scores a warp has
eight cache rows and half of the 576 columns, for the values all rows and 64 of the 512 columns; scores meet in shared
memory, where the two halves are added and every warp forms the same weights.

Rows of this step are normed by the multiplying warps, laid over their places in the ring and, once, stored to the
pages. A part of a context is normalised and leaves with its log-sum-exp.

State is the cache up to this step: where it is settled it is requested before the dependency wait. Lengths and
tables are the engine's, written before the step.
"""

import cutlass
from cutlass import BFloat16, Float32, Int32, Int64, cute

from runtime.kernels.common.launch.cute_matrices import (
    exp2,
    fence_copies,
    load_matrices,
    load_matrices_transposed,
    log2,
)
from runtime.kernels.common.launch.cute_ops import (
    WARP,
    as_bits,
    as_float,
    fma,
    load_activation,
    load_int,
    load_shared_pair,
    load_shared_word,
    load_weight,
    mma_bf16,
    pack,
    shared_bytes,
    store_floats,
    store_shared4,
    store_shared_pair,
    store_words,
    unpack,
    warp_sum,
)
from runtime.kernels.mla.cute_requests import PITCH, CoreRequests
from runtime.kernels.mla.shapes import LATENT, ROW, TILE

MULTIPLIERS = 8  # warps
THREADS = (MULTIPLIERS + 2) * WARP
HALF_STEPS = ROW // 2 // 32  # pairs of k16 steps of a score, for one half of the columns
SCORE_PITCH = TILE + 8
COLUMNS = LATENT // MULTIPLIERS  # of a warp
MEET = 1  # the barrier of the multiplying warps
LN2 = 0.6931471805599453
SHARED_LIMIT = 232448


def stage_bytes(rows: int) -> tuple[int, int]:
    """Shared memory of a stage, and what is needed beside the ring, for a number of query rows."""
    scores = 2 * 2 * rows * SCORE_PITCH * 4  # two tiles, two halves
    return TILE * PITCH * 2, rows * PITCH * 2 + scores + 2048


def most_stages(rows: int) -> int:
    """Stages that fit a multiprocessor, at most eight."""
    stage, rest = stage_bytes(rows)
    return min(8, (SHARED_LIMIT - rest) // stage)


def _squares(values):
    """Sum of the squares of some values."""
    total = Float32(0)
    for value in values:
        total = fma(value, value, total)
    return total


def _largest(values, first):
    """Largest of `first` and some values; NaN is passed over."""
    for value in values:
        first = cute.arch.fmax(first, value)
    return first


def _added(values, first):
    """`first` plus some values, in order."""
    for value in values:
        first = first + value
    return first


class MlaCoreKernel(CoreRequests):
    """One launch; the constructor's arguments are compile-time.

    heads, tokens: of a request. rows: query rows of a pair, 16 or 32. stages: of the ring, at least 3. settled,
    early_trigger: see `Overlap`; the state is the cache.
    """

    def __init__(self, heads, tokens, rows, stages=None, settled=False, early_trigger=False):
        self.heads, self.tokens, self.rows = heads, tokens, rows
        self.fragments = rows // 16
        self.groups = -(-heads * tokens // rows)
        self.stages = most_stages(rows) if stages is None else stages
        if not 3 <= self.stages <= most_stages(rows):
            raise ValueError(f"stages must be in 3…{most_stages(rows)} for {rows} rows, got {stages}")
        self.settled, self.early_trigger = settled, early_trigger
        self.held = self.fragments == 1  # whether the query stays in registers
        stage, rest = stage_bytes(rows)
        self.smem_bytes = shared_bytes(self.stages * stage + rest, 1)

    @cute.jit
    def __call__(
        self, query, kv_a, norm, cache, table, lengths, slots, o, lse, zeros,
        ctas, span, ranks, rank, eps, scale, stream,
    ):  # fmt: skip
        """query [T, N, 576], kv_a [T, 576], norm [512], cache [pages, block, 576], zeros [576] BF16; table [B, W],
        lengths [B], slots [2 T] (words of int64) int32; o [places, rows, 512], lse [places, rows] FP32. scale: times
        log2(e).
        """
        self.kernel(
            query, kv_a, norm, cache, table, lengths, slots, o, lse, zeros, span, ranks, rank, eps, scale
        ).launch(
            grid=(ctas, 1, 1),
            block=(THREADS, 1, 1),
            smem=self.smem_bytes,
            stream=stream,
            use_pdl=True,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(
        self,
        query: cute.Tensor,
        kv_a: cute.Tensor,
        norm: cute.Tensor,
        cache: cute.Tensor,
        table: cute.Tensor,
        lengths: cute.Tensor,
        slots: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
        zeros: cute.Tensor,
        span: Int32,
        ranks: Int32,
        rank: Int32,
        eps: Float32,
        scale: Float32,
    ):
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        thread, _, _ = cute.arch.thread_idx()
        lane, warp = thread % WARP, cute.arch.make_warp_uniform(thread // WARP)
        smem = cutlass.utils.SmemAllocator()
        ring = self._array(smem, BFloat16, self.stages * TILE * PITCH, 128)
        q_rows = self._array(smem, BFloat16, self.rows * PITCH, 128)
        scores = self._array(smem, Float32, 4 * self.rows * SCORE_PITCH, 128)
        present = self._array(smem, Int32, self.stages, 16)
        full = self._array(smem, cutlass.Uint64, self.stages, 8)
        free = self._array(smem, cutlass.Uint64, self.stages, 8)
        q_full = self._array(smem, cutlass.Uint64, 2, 8)
        if thread == 0:
            for stage in cutlass.range_constexpr(self.stages):
                cute.arch.mbarrier_init(full + stage, 1)
                cute.arch.mbarrier_init(free + stage, MULTIPLIERS)
            cute.arch.mbarrier_init(q_full, 1)
            cute.arch.mbarrier_init(q_full + 1, MULTIPLIERS)
            cute.arch.mbarrier_init_fence()
        if cutlass.const_expr(self.early_trigger):
            cute.arch.griddepcontrol_launch_dependents()
        cute.arch.sync_threads()

        plan = self._plan(lengths, cta, ctas, span, ranks, rank, lane)
        if warp == MULTIPLIERS:
            if cutlass.const_expr(not self.settled):
                self._wait()
            self._request_cache(plan, cache, table, zeros, ring, present, full, free, ranks, rank, lane)
            if cutlass.const_expr(self.settled):
                self._wait()
        else:
            self._wait()
            if warp > MULTIPLIERS:
                self._request_queries(plan, query, zeros, q_rows, q_full, ranks, rank, lane)
            else:
                inputs = (kv_a, norm, cache, slots, eps, scale, ranks, rank)
                shared = (ring, q_rows, scores, present, full, free, q_full)
                self._multiply(plan, inputs, shared, o, lse, cta, warp, lane)

    @cute.jit
    def _wait(self):
        cute.arch.griddepcontrol_wait()
        if cutlass.const_expr(not self.early_trigger):
            cute.arch.griddepcontrol_launch_dependents()

    def _array(self, smem, element, count, align):
        """Pointer to `count` elements of shared memory."""
        return smem.allocate_tensor(element, cute.make_layout(count), align).iterator

    # ---- the multiplying warps ---------------------------------------------------------------------------

    @cute.jit
    def _multiply(self, plan, inputs, shared, o, lse, cta, warp, lane):
        """Pair after pair of this CTA's run."""
        ranks, rank = inputs[6], inputs[7]
        q_rows, q_full = shared[1], shared[6]
        tile, stop = plan[4], plan[5]
        state = (Int32(0), Int32(0), Int32(0))  # stage, its phase, tiles so far
        stage, phase, count = state
        q_phase = Int32(0)
        held = cute.make_rmem_tensor((2 * HALF_STEPS, 4), cutlass.Uint32)
        sums = cute.make_rmem_tensor((self.fragments, COLUMNS // 8, 4), Float32)
        tops = cute.make_rmem_tensor((self.fragments, 2), Float32)
        totals = cute.make_rmem_tensor((self.fragments, 2), Float32)
        limits = cute.make_rmem_tensor((self.fragments, 2), Int32)
        while tile < stop:
            request, length, group, first, last = self._pair(plan, tile, ranks, rank)
            self._limits(limits, length, group, ranks, rank, lane)
            sums.fill(0)
            tops.fill(-Float32.inf)
            totals.fill(0)
            cute.arch.mbarrier_wait(q_full, q_phase)
            if cutlass.const_expr(self.held):
                self._hold(q_rows, held, warp, lane)
                cute.arch.sync_warp()
                if lane == 0:
                    cute.arch.mbarrier_arrive(q_full + 1)
            for i in cutlass.range(first, last, unroll=1):
                where = (request, length, group, i)
                self._tile(
                    where,
                    inputs,
                    shared,
                    held,
                    sums,
                    tops,
                    totals,
                    limits,
                    stage,
                    phase,
                    count & 1,
                    warp,
                    lane,
                )
                count += 1
                stage += 1
                if stage == self.stages:
                    stage, phase = Int32(0), phase ^ 1
            if cutlass.const_expr(not self.held):
                cute.arch.sync_warp()
                if lane == 0:
                    cute.arch.mbarrier_arrive(q_full + 1)
            q_phase ^= 1
            place = cta + request * self.groups + group
            self._leave(o, lse, place, sums, tops, totals, warp, lane)
            tile += last - first

    @cute.jit
    def _limits(self, limits, length, group, ranks, rank, lane):
        """The last cache row of this rank that each of the lane's query rows sees; -1 for none."""
        for m in cutlass.range_constexpr(self.fragments):
            for h in cutlass.range_constexpr(2):
                row = group * self.rows + 16 * m + 8 * h + lane // 4
                position = length - self.tokens + row // self.heads
                ahead = position - rank
                limits[m, h] = (ahead if ahead > 0 else Int32(0)) // ranks if ahead >= 0 else Int32(-1)

    @cute.jit
    def _hold(self, q_rows, held, warp, lane):
        """The query words of this warp's half of the columns."""
        base = q_rows + lane % 16 * PITCH + warp // 4 * (ROW // 2) + lane // 16 * 8
        for step in cutlass.range_constexpr(2 * HALF_STEPS):
            words = load_matrices(base + 16 * step)
            for j in cutlass.range_constexpr(4):
                held[step, j] = words[j]

    @cute.jit
    def _tile(
        self, where, inputs, shared, held, sums, tops, totals, limits, stage, phase, buffer, warp, lane
    ):
        """Add one tile to the running sums."""
        _, length, _, i = where
        ring, q_rows, scores, present, full, free, _ = shared
        ranks, rank = inputs[6], inputs[7]
        rows = ring + stage * (TILE * PITCH)
        cute.arch.mbarrier_wait(full + stage, phase)
        if (i * TILE + TILE - 1) * ranks + rank >= length - self.tokens:
            if warp < self.tokens:
                self._append(inputs, rows, where, warp, lane)
            cute.arch.barrier(barrier_id=MEET, number_of_threads=MULTIPLIERS * WARP)
        self._score(rows, q_rows, held, scores, buffer, warp, lane)
        cute.arch.barrier(barrier_id=MEET, number_of_threads=MULTIPLIERS * WARP)
        seen = load_shared_word(present + stage)
        for m in cutlass.range_constexpr(self.fragments):
            weights = self._weigh(scores, seen, inputs[5], sums, tops, totals, limits, i, buffer, m, lane)
            self._add_values(rows, weights, sums, m, warp, lane)
        cute.arch.sync_warp()
        if lane == 0:
            cute.arch.mbarrier_arrive(free + stage)

    @cute.jit
    def _append(self, inputs, rows, where, token, lane):
        """Norm the row of one of this step's tokens, lay it over its place in the stage and store it to its page."""
        kv_a, norm, cache, slots, eps, _, ranks, rank = inputs
        request, length, group, i = where
        ahead = length - self.tokens + token - rank
        row = (ahead if ahead > 0 else Int32(0)) // ranks
        if (ahead >= 0) & (row * ranks == ahead) & (row // TILE == i):
            source = kv_a.iterator + Int64(request * self.tokens + token) * kv_a.stride[0]
            words = load_activation(source + 16 * lane) + load_activation(source + 16 * lane + 8)
            weight = load_weight(norm.iterator + 16 * lane) + load_weight(norm.iterator + 16 * lane + 8)
            values, factors = unpack(words), unpack(weight)
            square = warp_sum(_squares(values))
            root = cute.math.rsqrt(fma(square, Float32(1 / LATENT), eps), fastmath=True)
            words = pack(tuple(v * root * f for v, f in zip(values, factors, strict=True)))
            key = load_activation(source + LATENT + 8 * (lane % 8))
            place = rows + row % TILE * PITCH
            store_shared4(place + 16 * lane, tuple(as_float(word) for word in words[:4]))
            store_shared4(place + 16 * lane + 8, tuple(as_float(word) for word in words[4:]))
            if lane < 8:
                store_shared4(place + LATENT + 8 * lane, tuple(as_float(word) for word in key))
            fence_copies()
            slot = load_int(slots.iterator + 2 * (request * self.tokens + token))
            if (slot >= 0) & (group == 0):
                page = slot // cache.shape[1]
                offset = Int64(page) * cache.stride[0] + Int64(slot - page * cache.shape[1]) * cache.stride[1]
                to = cache.iterator + offset
                store_words(to + 16 * lane, words[:4])
                store_words(to + 16 * lane + 8, words[4:])
                if lane < 8:
                    store_words(to + LATENT + 8 * lane, key)

    @cute.jit
    def _score(self, rows, q_rows, held, scores, buffer, warp, lane):
        """Products of all query rows with this warp's eight cache rows over its half of the columns."""
        half, part = warp // 4, warp % 4
        keys = rows + (8 * part + lane % 8) * PITCH + half * (ROW // 2) + lane // 8 * 8
        queries = q_rows + lane % 16 * PITCH + half * (ROW // 2) + lane // 16 * 8
        even = [(Float32(0),) * 4] * self.fragments
        odd = [(Float32(0),) * 4] * self.fragments
        for step in cutlass.range_constexpr(HALF_STEPS):
            key = load_matrices(keys + 32 * step)
            for m in cutlass.range_constexpr(self.fragments):
                if cutlass.const_expr(self.held):
                    a = tuple(held[2 * step, j] for j in range(4))
                    b = tuple(held[2 * step + 1, j] for j in range(4))
                else:
                    a = load_matrices(queries + 16 * m * PITCH + 32 * step)
                    b = load_matrices(queries + 16 * m * PITCH + 32 * step + 16)
                even[m] = mma_bf16(a, (key[0], key[1]), even[m])
                odd[m] = mma_bf16(b, (key[2], key[3]), odd[m])
        for m in cutlass.range_constexpr(self.fragments):
            total = tuple(x + y for x, y in zip(even[m], odd[m], strict=True))
            to = scores + self._score_at(buffer, half, 16 * m + lane // 4) + 8 * part + 2 * (lane % 4)
            store_shared_pair(to, (as_bits(total[0]), as_bits(total[1])))
            store_shared_pair(to + 8 * SCORE_PITCH, (as_bits(total[2]), as_bits(total[3])))

    def _score_at(self, buffer, half, row):
        return ((buffer * 2 + half) * self.rows + row) * SCORE_PITCH

    @cute.jit
    def _weigh(self, scores, seen, scale, sums, tops, totals, limits, i, buffer, m: cutlass.Constexpr, lane):
        """The weights of 16 query rows as the mma's A words, [k16 step]; rescales the running sums to the new top."""
        t = lane % 4
        weights = []
        for h in cutlass.range_constexpr(2):
            row = 16 * m + 8 * h + lane // 4
            first = scores + self._score_at(buffer, 0, row) + 2 * t
            second = scores + self._score_at(buffer, 1, row) + 2 * t
            values = []
            for c in cutlass.range_constexpr(4):
                x, y = load_shared_pair(first + 8 * c), load_shared_pair(second + 8 * c)
                for e in cutlass.range_constexpr(2):
                    column = 8 * c + 2 * t + e
                    visible = (((seen >> column) & 1) == 1) & (i * TILE + column <= limits[m, h])
                    score = (as_float(x[e]) + as_float(y[e])) * scale
                    values.append(score if visible else -Float32.inf)
            top = _largest(values, tops[m, h])
            top = cute.arch.fmax(top, cute.arch.shuffle_sync_bfly(top, 1))
            top = cute.arch.fmax(top, cute.arch.shuffle_sync_bfly(top, 2))
            base = Float32(0) if top == -Float32.inf else top
            shrink = exp2(tops[m, h] - base)
            tops[m, h] = top
            exps = [exp2(value - base) for value in values]
            totals[m, h] = _added(exps, totals[m, h] * shrink)
            for n in cutlass.range_constexpr(COLUMNS // 8):
                sums[m, n, 2 * h] *= shrink
                sums[m, n, 2 * h + 1] *= shrink
            weights.append(pack(tuple(exps)))
        return [
            (weights[0][2 * k], weights[1][2 * k], weights[0][2 * k + 1], weights[1][2 * k + 1])
            for k in range(2)
        ]

    @cute.jit
    def _add_values(self, rows, weights, sums, m: cutlass.Constexpr, warp, lane):
        """Add the weighted latents of this warp's columns."""
        base = rows + lane % 16 * PITCH + COLUMNS * warp + lane // 16 * 8
        for k in cutlass.range_constexpr(TILE // 16):
            for pair in cutlass.range_constexpr(COLUMNS // 16):
                words = load_matrices_transposed(base + 16 * k * PITCH + 16 * pair)
                for j in cutlass.range_constexpr(2):
                    n: cutlass.Constexpr = 2 * pair + j
                    total = tuple(sums[m, n, e] for e in range(4))
                    total = mma_bf16(weights[k], (words[2 * j], words[2 * j + 1]), total)
                    for e in cutlass.range_constexpr(4):
                        sums[m, n, e] = total[e]

    @cute.jit
    def _leave(self, o, lse, place, sums, tops, totals, warp, lane):
        """Write the part: normalised sums and natural log-sum-exps; zeros and -inf where nothing was seen."""
        t = lane % 4
        for m in cutlass.range_constexpr(self.fragments):
            for h in cutlass.range_constexpr(2):
                total = totals[m, h]
                total += cute.arch.shuffle_sync_bfly(total, 1)
                total += cute.arch.shuffle_sync_bfly(total, 2)
                none = total == Float32(0)
                inverse = Float32(0) if none else cute.arch.rcp_approx(total)
                row = Int64(place) * self.rows + 16 * m + 8 * h + lane // 4
                if (warp == 0) & (t == 0):
                    known = (tops[m, h] + log2(total)) * Float32(LN2)
                    store_floats(lse.iterator + row, (-Float32.inf if none else known,))
                to = o.iterator + row * LATENT + COLUMNS * warp + 2 * t
                for n in cutlass.range_constexpr(COLUMNS // 8):
                    store_floats(to + 8 * n, (sums[m, n, 2 * h] * inverse, sums[m, n, 2 * h + 1] * inverse))
