"""Weight-streaming GEMM for few rows: `out[m, n] = sum_k x[m, k] w[n, k]`, M ≤ 64 (device code).

The weight is read once at the speed of device memory and everything else hides behind that. A CTA owns `tile`
weight rows and all tokens. Each of its warps owns every `warps`-th 64-column block of K and a private ring of
shared-memory slots; the copy engine (TMA, 128-byte swizzle) fills them with weights and the warp's lanes with
activations, whose latency is shorter that way. The warp that has consumed a slot requests the next block itself,
so the main loop has no CTA barrier and no producer warp. Weights are the M side of
mma.m16n8k16 and tokens the N side, padded to 8. The rings are filled with weights before the dependency wait: in
a chain of kernels they stream while the predecessor finishes.

Partial sums are added over warps, then over the `splits` CTAs of a cluster that share a tile, always in the same
order: a row's bits depend on (warps, splits) alone, not on the other rows. They travel as the mma leaves them, four
FP32 of a lane at a time.

Where all blocks of a warp fit its ring, lanes load activations straight into the registers that the mma wants
(`direct`): each is used by one warp only.
"""

import cutlass
from cutlass import BFloat16, Float32, Int32, Uint32, cute
from cutlass.cute.nvgpu import cpasync

from runtime.kernels.common.launch.cute_ops import (
    WARP,
    arrive_after_copies,
    bf16_high,
    bf16_low,
    copy_activation,
    load_activation,
    load_shared4,
    load_shared_words,
    mma_bf16,
    pack,
    push4,
    shared_bytes,
    sigmoid,
    store_bf16,
    store_floats,
    store_shared4,
    wait_pushes,
)

BLOCK = 64  # columns of K in a slot: one 128-byte swizzled row
ROW_BYTES = BLOCK * 2


class SkinnyGemmKernel:
    """One launch of the operator; the constructor's arguments are compile-time.

    k: columns of the weight. tile: weight rows of a CTA (a multiple of 8; of 16 for "situ"). tokens: M rounded up
    to 8, 16, 32 or 64. warps: per CTA. depth: slots in a warp's ring. splits: CTAs that share a tile, each with a
    part of K. resident: CTAs that may share a multiprocessor. direct: whether activations go to registers, which
    needs `depth` slots for all blocks of a warp. epilogue: "bf16", "fp32", or "situ" (first half of the
    weight's rows is gate, second half up; BF16 out).
    """

    def __init__(
        self,
        k,
        tile,
        tokens,
        warps,
        depth,
        splits,
        resident,
        epilogue,
        direct=False,
        situ_beta=4.0,
        situ_linear_beta=25.0,
    ):
        self.k, self.tile, self.tokens, self.resident = k, tile, tokens, resident
        self.fragments = -(-tile // 16)  # of 16 weight rows
        self.warps, self.depth, self.splits, self.epilogue = warps, depth, splits, epilogue
        self.situ_beta, self.situ_linear_beta = situ_beta, situ_linear_beta
        self.threads = warps * WARP
        self.blocks = k // BLOCK // splits // warps  # of a warp
        self.halves = 2 if epilogue == "situ" else 1  # row ranges of the weight in one tile
        self.w_rows = tile // self.halves
        self.x_rows = 0 if direct else tokens  # of a slot in the ring of activations
        self.direct = direct
        if direct and depth < self.blocks:
            raise ValueError(f"direct needs {self.blocks} slots a warp, got {depth}")
        self.columns = tokens // 8  # of mma tiles
        self.warp_floats = self.fragments * self.columns * 128  # a warp's partial sums
        # the rings later hold the warps' partial sums
        self.ring_bytes = warps * max(depth * (tile + self.x_rows) * ROW_BYTES, 4 * self.warp_floats)
        exchange = self.warp_floats * 4 if splits > 1 else 16
        needed = self.ring_bytes + exchange + 8 * (warps * depth + 1) + 2048
        self.smem_bytes = shared_bytes(needed, resident)
        self.share = self.warp_floats // splits  # sums that a CTA of the cluster finishes

    @cute.jit
    def __call__(self, x, w, out, stream):
        """x [M, K] BF16, w [N, K] BF16, out [M, N] (N / 2 columns for "situ")."""
        slot = cute.make_composed_layout(
            cute.make_swizzle(3, 4, 3), 0, cute.make_layout((self.w_rows, BLOCK), stride=(BLOCK, 1))
        )
        w_copy, w_map = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(), w, slot, (self.w_rows, BLOCK)
        )
        tiles = cute.ceil_div(w.shape[0], self.tile)
        self.kernel(w_copy, w_map, x, out).launch(
            grid=(self.splits, tiles, 1),
            block=(self.threads, 1, 1),
            cluster=(self.splits, 1, 1),
            smem=self.smem_bytes,
            stream=stream,
            use_pdl=True,
        )

    @cute.kernel
    def kernel(
        self,
        w_copy: cute.CopyAtom,
        w_map: cute.Tensor,
        x: cute.Tensor,
        out: cute.Tensor,
    ):
        part, tile, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        lane, warp = thread % WARP, cute.arch.make_warp_uniform(thread // WARP)
        smem = cutlass.utils.SmemAllocator()
        slots = self.warps * self.depth
        w_ring = self._array(smem, BFloat16, self.ring_bytes // 2, 1024)
        x_ring = w_ring + slots * self.tile * BLOCK
        mailbox = self._array(smem, Float32, self.warp_floats if self.splits > 1 else 4, 16)
        full = self._array(smem, cutlass.Uint64, slots + 1, 8)
        mine = full + warp * self.depth
        if lane == 0:
            for slot in cutlass.range_constexpr(self.depth):
                # the copy engine, and every lane that copies activations
                cute.arch.mbarrier_init(mine + slot, 1 if self.direct else 1 + WARP)
            if cutlass.const_expr(self.splits > 1):
                if warp == 0:
                    cute.arch.mbarrier_init(full + slots, 1)
                    cute.arch.mbarrier_arrive_and_expect_tx(full + slots, self.warp_floats * 4)
            cute.arch.mbarrier_init_fence()
        if cutlass.const_expr(self.splits > 1):
            cute.arch.cluster_arrive_relaxed()
        cute.arch.sync_warp()

        first = part * (self.k // BLOCK // self.splits) + warp
        requests = self._requests(w_copy, w_map, w_ring)
        ahead: cutlass.Constexpr = min(self.depth, self.blocks)
        for slot in cutlass.range_constexpr(ahead):
            block, at = first + slot * self.warps, warp * self.depth + slot
            self._request_weights(w_copy, requests, tile, block, at, mine + slot)
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        sums = cute.make_rmem_tensor((self.fragments, self.columns, 4), Float32)
        sums.fill(0)
        if cutlass.const_expr(self.direct):
            held = [self._load_tokens(x, first + slot * self.warps, lane) for slot in range(self.blocks)]
            for slot in cutlass.range_constexpr(self.blocks):
                cute.arch.mbarrier_wait(mine + slot, 0)
                at = warp * self.depth + slot
                self._multiply(w_ring + at * (self.tile * BLOCK), held[slot], sums, lane)
        else:
            self._stream(w_copy, requests, x, w_ring, x_ring, mine, sums, tile, first, warp, lane)

        cute.arch.sync_threads()  # the rings are free: they now hold the warps' partial sums
        partial = cute.recast_ptr(w_ring, dtype=Float32)
        self._spill(sums, partial, warp, lane)
        cute.arch.sync_threads()
        if cutlass.const_expr(self.splits > 1):
            cute.arch.cluster_wait()
            self._exchange(partial, mailbox, full + slots, part, thread)
            wait_pushes(full + slots)
            self._finish(mailbox, self.splits, part * self.share, self.share, out, tile, thread)
        else:
            self._finish(partial, self.warps, 0, self.warp_floats, out, tile, thread)

    def _array(self, smem, element, count, align):
        """Pointer to `count` elements of shared memory."""
        return smem.allocate_tensor(element, cute.make_layout(count), align).iterator

    # ---- loads -------------------------------------------------------------------------------------------

    @cute.jit
    def _requests(self, copy, tensor_map, ring):
        """The partitioned (shared, global) views of the weight: [rows × 64 | slot] and [rows × 64 | tile, block]."""
        slots = self.warps * self.depth * self.halves
        layout = cute.make_layout((self.w_rows, BLOCK, slots), stride=(BLOCK, 1, self.w_rows * BLOCK))
        shared = cute.make_tensor(cute.recast_ptr(ring, cute.make_swizzle(3, 4, 3), dtype=BFloat16), layout)
        tiled = cute.local_tile(tensor_map, (self.w_rows, BLOCK), (None, None))
        return cpasync.tma_partition(
            copy, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(tiled, 0, 2)
        )

    @cute.jit
    def _request_weights(self, copy, requests, tile, block, slot, barrier):
        """Have the copy engine fill one slot of the weight ring (rows past the end become zeros)."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, self.tile * ROW_BYTES)
        shared, source = requests
        for half in cutlass.range_constexpr(self.halves):
            rows = tile
            if cutlass.const_expr(self.halves == 2):
                rows = tile + half * cute.arch.grid_dim()[1]
            cute.copy(
                copy, source[None, rows, block], shared[None, slot * self.halves + half], tma_bar_ptr=barrier
            )

    @cute.jit
    def _request_tokens(self, x, block, slot, barrier, lane):
        """Copy one block of every token to its slot, 16 bytes a lane and step; rows past the last token are zero."""
        for step in cutlass.range_constexpr(self.tokens // 4):
            token, chunk = 4 * step + lane // 8, lane % 8
            present = token < x.shape[0]
            row = token if present else Int32(0)
            source = x.iterator + row * x.stride[0] + block * BLOCK + chunk * 8
            place = slot + token * BLOCK + (chunk ^ (token % 8)) * 8
            copy_activation(place, source, present)
        arrive_after_copies(barrier)

    @cute.jit
    def _load_tokens(self, x, block, lane):
        """One block of the tokens as this lane's mma words, [half][column of tokens]; past the last row, row 0."""
        held = []
        for half in cutlass.range_constexpr(2):
            words = []
            for n in cutlass.range_constexpr(self.columns):
                token = 8 * n + lane // 4
                row = token if token < x.shape[0] else Int32(0)
                chunk = x.iterator + row * x.stride[0] + block * BLOCK + (2 * (lane % 4) + half) * 8
                words.append(load_activation(chunk, cached=True))  # the two halves share sectors
            held.append(words)
        return held

    @cute.jit
    def _stream(self, w_copy, requests, x, w_ring, x_ring, mine, sums, tile, first, warp, lane):
        """Multiply block after block of this warp while its ring refills."""
        for slot in cutlass.range_constexpr(min(self.depth, self.blocks)):
            block, at = first + slot * self.warps, warp * self.depth + slot
            self._request_tokens(x, block, x_ring + at * (self.tokens * BLOCK), mine + slot, lane)
        slot, phase = Int32(0), Int32(0)
        for i in cutlass.range(self.blocks, unroll=1):
            at = warp * self.depth + slot
            cute.arch.mbarrier_wait(mine + slot, phase)
            tokens = self._read_tokens(x_ring + at * (self.tokens * BLOCK), lane)
            self._multiply(w_ring + at * (self.tile * BLOCK), tokens, sums, lane)
            cute.arch.sync_warp()
            if i + self.depth < self.blocks:
                block = first + (i + self.depth) * self.warps
                self._request_weights(w_copy, requests, tile, block, at, mine + slot)
                self._request_tokens(x, block, x_ring + at * (self.tokens * BLOCK), mine + slot, lane)
            slot += 1
            if slot == self.depth:
                slot, phase = Int32(0), phase ^ 1

    @cute.jit
    def _read_tokens(self, x_slot, lane):
        """What `_load_tokens` returns, from the ring."""
        held = []
        for half in cutlass.range_constexpr(2):
            chunk = ((2 * (lane % 4) + half) ^ (lane // 4)) * 8 + lane // 4 * BLOCK
            held.append([load_shared_words(x_slot + chunk + 8 * n * BLOCK) for n in range(self.columns)])
        return held

    # ---- arithmetic --------------------------------------------------------------------------------------

    @cute.jit
    def _multiply(self, w_slot, held, sums, lane):
        """Add one 64-column block: lane (g, t) holds the 16-byte chunks 2 t and 2 t + 1 of rows g mod 8.

        A fragment is 16 rows of the tile; for "situ" eight of gate and the eight of up that belong to them.
        """
        g, t = lane // 4, lane % 4
        step_rows: cutlass.Constexpr = 16 // self.halves
        apart: cutlass.Constexpr = self.w_rows if self.halves == 2 else 8
        for half in cutlass.range_constexpr(2):
            chunk = ((2 * t + half) ^ g) * 8 + g * BLOCK  # elements; the swizzle is the exclusive or
            tokens = held[half]
            for m in cutlass.range_constexpr(self.fragments):
                low = load_shared_words(w_slot + chunk + step_rows * m * BLOCK)
                high = (Uint32(0),) * 4
                if cutlass.const_expr(16 * m + 8 < self.tile):
                    high = load_shared_words(w_slot + chunk + (step_rows * m + apart) * BLOCK)
                for n in cutlass.range_constexpr(self.tokens // 8):
                    total = tuple(sums[m, n, j] for j in range(4))
                    for step in cutlass.range_constexpr(2):
                        a, b = 2 * step, 2 * step + 1
                        total = mma_bf16(
                            (low[a], high[a], low[b], high[b]), (tokens[n][a], tokens[n][b]), total
                        )
                    for j in cutlass.range_constexpr(4):
                        sums[m, n, j] = total[j]

    @cute.jit
    def _spill(self, sums, partial, warp, lane):
        """Write this warp's sums as [fragment][column][lane] words of four."""
        base = partial + warp * self.warp_floats + 4 * lane
        for m in cutlass.range_constexpr(self.fragments):
            for n in cutlass.range_constexpr(self.columns):
                place = base + (m * self.columns + n) * 128
                store_shared4(place, tuple(sums[m, n, j] for j in range(4)))

    @cute.jit
    def _add(self, base, count: cutlass.Constexpr, stride: cutlass.Constexpr):
        """Sums of `count` words of four FP32 `stride` apart, in order."""
        total = (Float32(0),) * 4
        for i in cutlass.range_constexpr(count):
            total = tuple(a + b for a, b in zip(total, load_shared4(base + i * stride), strict=True))
        return total

    @cute.jit
    def _exchange(self, partial, mailbox, barrier, part, thread):
        """Send each word's sums to the CTA of the cluster that finishes it: [sender][word]."""
        for step in cutlass.range_constexpr(cute.ceil_div(self.warp_floats, 4 * self.threads)):
            at = 4 * (step * self.threads + thread)
            if at < self.warp_floats:
                owner = at // self.share
                value = self._add(partial + at, self.warps, self.warp_floats)
                push4(mailbox + part * self.share + at - owner * self.share, value, barrier, owner)

    @cute.jit
    def _finish(
        self,
        base,
        count: cutlass.Constexpr,
        first,
        floats: cutlass.Constexpr,
        out,
        tile,
        thread,
    ):
        """Add the last partial sums of `floats` sums from `first` on, apply the epilogue and store."""
        for step in cutlass.range_constexpr(cute.ceil_div(floats, 4 * self.threads)):
            at = 4 * (step * self.threads + thread)
            if at < floats:
                value = self._add(base + at, count, floats)
                word = (first + at) // 4
                fragment, column, lane = (
                    word // (WARP * self.columns),
                    word // WARP % self.columns,
                    word % WARP,
                )
                token = 8 * column + 2 * (lane % 4)
                for j in cutlass.range_constexpr(2):
                    if cutlass.const_expr(self.epilogue == "situ"):
                        activated = self._situ(value[j], value[j + 2])
                        self._store(out, tile, token + j, 8 * fragment + lane // 4, activated)
                    else:
                        self._store(out, tile, token + j, 16 * fragment + lane // 4, value[j])
                        self._store(out, tile, token + j, 16 * fragment + lane // 4 + 8, value[j + 2])

    @cute.jit
    def _store(self, out, tile, token, row, value):
        """One element of the output; `row` of the tile."""
        column = tile * self.w_rows + row
        if (row < self.w_rows) & (token < out.shape[0]) & (column < out.shape[1]):
            place = out.iterator + token * out.stride[0] + column
            if cutlass.const_expr(self.epilogue == "fp32"):
                store_floats(place, (value,))
            else:
                store_bf16(place, value)

    @cute.jit
    def _situ(self, gate, up):
        """SiTU of the BF16-rounded projections, in FP32."""
        word = pack((gate, up))[0]
        gate, up = bf16_low(word), bf16_high(word)
        bounded = self.situ_beta * cute.math.tanh(gate * (1 / self.situ_beta)) * sigmoid(gate)
        return bounded * (self.situ_linear_beta * cute.math.tanh(up * (1 / self.situ_linear_beta)))
