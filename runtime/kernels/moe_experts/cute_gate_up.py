"""Gate and up products of the routed experts with SiTU, for groups of up to eight tokens (device code).

A unit is one group of tokens of one expert times 64 gate rows and the 64 up rows that belong to them. Clusters of
CTAs take units in turn; the warps of a cluster share out the columns. The warps' sums meet in shared memory, those
of a cluster at the CTA that owns a fragment; they are always added in the same order, so a token's bits depend on the
launch shape alone.

If the groups are settled (see `spec`), the first weights are requested before the dependency wait.
"""

import cutlass
from cutlass import Float32, Int32, Int64, cute

from runtime.kernels.common.launch.cute_ops import (
    WARP,
    bf16_high,
    bf16_low,
    load_int,
    load_shared4,
    pack,
    prefetch_bulk,
    push4,
    shared_bytes,
    sigmoid,
    store_bf16,
    store_shared4,
    wait_pushes,
)
from runtime.kernels.moe_experts.cute_mxfp4 import FRAGMENTS, GROUP
from runtime.kernels.moe_experts.cute_stream import WeightStream, lane_order

HALF_FLOATS = FRAGMENTS * 128  # sums of 64 rows and eight tokens, as the tensor cores leave them
UNIT_FLOATS = 2 * HALF_FLOATS


class ExpertsGateUp(WeightStream):
    """One launch; the constructor's arguments are compile-time.

    latent: K. width: rows of gate, and of up. slots: experts of a token. warps: per CTA. cluster: CTAs that share a
    unit, 1, 2 or 4. resident: CTAs that may share a multiprocessor. depth: steps of 32 columns that a warp is ahead.
    prefetch: whether the weights of the next kernel are brought to the L2 cache; for few tokens, where memory is idle
    while this one is busy with arithmetic. settled, early_trigger: see `Overlap`.
    """

    def __init__(
        self,
        latent,
        width,
        slots,
        warps,
        cluster,
        resident,
        depth,
        prefetch=False,
        settled=False,
        early_trigger=False,
        situ_beta=4.0,
        situ_linear_beta=25.0,
    ):
        shares = warps * cluster
        if latent % (shares * GROUP):
            raise ValueError(f"{latent} columns do not divide into {shares} whole shares")
        super().__init__(latent, width // 32, width // 64, latent // GROUP // shares, depth, slots, False)
        self.warps, self.cluster, self.resident = warps, cluster, resident
        self.settled, self.early_trigger, self.prefetch = settled, early_trigger, prefetch
        self.situ_beta, self.situ_linear_beta = situ_beta, situ_linear_beta
        self.threads = warps * WARP
        self.blocks = width // 64  # of gate rows, each with its block of up rows
        # Warps that bring an expert's next weights, and words of each: 8 codes, or 4 scales of 32.
        self.bringers = self.blocks * shares
        self.next_words, self.next_scales = latent * width // 8, latent * width // 128
        if prefetch and self.next_scales % (4 * self.bringers):
            raise ValueError(f"{self.bringers} warps cannot share out the weights of the next kernel")
        self.partial_bytes = 2 * warps * UNIT_FLOATS * 4
        mailbox = 2 * UNIT_FLOATS * 4 if cluster > 1 else 0
        self.smem_bytes = shared_bytes(self.partial_bytes + mailbox + 256, resident)
        self.owned = FRAGMENTS // cluster  # gate fragments that a CTA of the cluster finishes
        self.share = UNIT_FLOATS // cluster

    @cute.jit
    def __call__(self, x, w, scales, experts, rows, count, hidden, w_next, s_next, lanes, place, stream):
        """x [T, K] BF16, w [E, K/16, 4 I] int32, scales [E, K/32, I/2] int32, experts [G], rows [G, 8], count [1].

        hidden [T slots, I] BF16, every 32 columns in `lane_order`. w_next, s_next: of the next kernel. lanes: clusters
        in the grid. place: 128, as for `cute_mxfp4.factors`.
        """
        self.kernel(x, w, scales, experts, rows, count, hidden, w_next, s_next, place).launch(
            grid=(self.cluster, lanes, 1),
            block=(self.threads, 1, 1),
            cluster=(self.cluster, 1, 1),
            smem=self.smem_bytes,
            stream=stream,
            use_pdl=True,
            min_blocks_per_mp=self.resident,
            preferred_smem_carveout=-1,  # the driver's choice; without a value the DSL asks the driver
        )

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        w: cute.Tensor,
        scales: cute.Tensor,
        experts: cute.Tensor,
        rows: cute.Tensor,
        count: cute.Tensor,
        hidden: cute.Tensor,
        w_next: cute.Tensor,
        s_next: cute.Tensor,
        place: Int32,
    ):
        part, unit, _ = cute.arch.block_idx()
        _, lanes, _ = cute.arch.grid_dim()
        thread, _, _ = cute.arch.thread_idx()
        lane, warp = thread % WARP, cute.arch.make_warp_uniform(thread // WARP)
        smem = cutlass.utils.SmemAllocator()
        partial = smem.allocate_tensor(Float32, cute.make_layout(self.partial_bytes // 4), 16).iterator
        boxes = cute.make_layout(2 * UNIT_FLOATS if self.cluster > 1 else 4)
        mailbox = smem.allocate_tensor(Float32, boxes, 16).iterator
        full = smem.allocate_tensor(cutlass.Uint64, cute.make_layout(2), 8).iterator
        if cutlass.const_expr(self.early_trigger):
            cute.arch.griddepcontrol_launch_dependents()
        if cutlass.const_expr(self.cluster > 1):
            self._open_mailboxes(full, thread)

        if cutlass.const_expr(not self.settled):
            self._wait()
        step = (part * self.warps + warp) * self.steps  # the warp's first, of 32 columns
        units = load_int(count.iterator) * self.blocks
        buffers = self._buffers(place)
        row = self._expert_row(experts, unit // self.blocks, unit < units) + step
        if unit < units:
            for d in cutlass.range_constexpr(self.depth):
                self._request(w, scales, row, unit % self.blocks, d, lane, buffers)
        at = self._token_at(x, rows, unit, units, step, lane)
        if cutlass.const_expr(self.prefetch):
            if unit < units:
                self._bring(w_next, s_next, (row - step) // self.rows_of_groups, unit, part, warp)
        if cutlass.const_expr(self.settled):
            self._wait()
        if unit < units:
            for d in cutlass.range_constexpr(self.depth):
                self._request_tokens(x, at, d, buffers)
        if cutlass.const_expr(self.cluster > 1):
            cute.arch.cluster_wait()

        parity, phase = Int32(0), Int32(0)
        while unit < units:
            following = unit + lanes
            more = following < units
            next_row = self._expert_row(experts, following // self.blocks, more) + step
            next_at = self._token_at(x, rows, following, units, step, lane)
            job = (row, unit % self.blocks, at)
            next_job = (next_row, following % self.blocks, next_at)
            self._job(w, scales, x, job, next_job, more, lane, buffers)
            self._combine(buffers[3], partial, mailbox, full, parity, phase, rows, hidden, unit, part, thread)
            phase ^= parity
            parity ^= 1
            unit, row, at = following, next_row, next_at

    @cute.jit
    def _bring(self, w_next, s_next, expert, unit, part, warp):
        """Bring this warp's share of the expert's next weights to the L2 cache."""
        share = (unit % self.blocks * self.cluster + part) * self.warps + warp
        words: cutlass.Constexpr = self.next_words // self.bringers
        scales: cutlass.Constexpr = self.next_scales // self.bringers
        with cute.arch.elect_one():
            w_at = Int64(expert) * self.next_words + share * words
            prefetch_bulk(w_next.iterator + w_at, 4 * words)
            s_at = Int64(expert) * self.next_scales + share * scales
            prefetch_bulk(s_next.iterator + s_at, 4 * scales)

    @cute.jit
    def _token_at(self, x, rows, unit, units, step, lane):
        """Where the lane's first token word of a unit is."""
        pair = self._token(rows, unit // self.blocks, unit < units, lane)
        return pair // self.slots * Int32(x.stride[0]) + step * GROUP + lane % 4 * 2

    # ---- sums --------------------------------------------------------------------------------------------

    @cute.jit
    def _open_mailboxes(self, full, thread):
        """Arm the barriers; the cluster may push after `cluster_wait`."""
        if thread == 0:
            for parity in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(full + parity, 1)
                cute.arch.mbarrier_arrive_and_expect_tx(full + parity, UNIT_FLOATS * 4)
            cute.arch.mbarrier_init_fence()
        cute.arch.cluster_arrive_relaxed()

    @cute.jit
    def _place(self, g, t):
        """Place of lane (g, t) among the 32 words of a fragment: free of bank conflicts by g and by t."""
        return t * 8 + (g ^ (2 * t))

    @cute.jit
    def _combine(self, sums, partial, mailbox, full, parity, phase, rows, hidden, unit, part, thread):
        """Add the warps' sums, then the cluster's, apply SiTU and store.

        Partial sums and mailboxes alternate by parity: a CTA that fills one again has seen all pushes of the other,
        and its peers pushed those after they had read this one.
        """
        lane, warp = thread % WARP, thread // WARP
        partial += parity * (self.warps * UNIT_FLOATS)
        mine = partial + warp * UNIT_FLOATS + 4 * self._place(lane // 4, lane % 4)
        for f in cutlass.range_constexpr(2 * FRAGMENTS):
            store_shared4(mine + f * 128, tuple(sums[f, j] for j in range(4)))
        cute.arch.sync_threads()
        if cutlass.const_expr(self.cluster == 1):
            self._finish(partial, self.warps, UNIT_FLOATS, rows, hidden, unit, 0, thread)
        else:
            box = mailbox + parity * UNIT_FLOATS
            self._exchange(partial, box, full + parity, part, thread)
            wait_pushes(full + parity, phase)
            if thread == 0:
                cute.arch.mbarrier_arrive_and_expect_tx(full + parity, UNIT_FLOATS * 4)
            self._finish(box, self.cluster, self.share, rows, hidden, unit, part, thread)

    @cute.jit
    def _add(self, base, count: cutlass.Constexpr, stride: cutlass.Constexpr):
        """Sums of `count` words of four FP32 `stride` apart, in order."""
        total = (Float32(0),) * 4
        for i in cutlass.range_constexpr(count):
            total = tuple(a + b for a, b in zip(total, load_shared4(base + i * stride), strict=True))
        return total

    @cute.jit
    def _exchange(self, partial, box, barrier, part, thread):
        """Send each word's sums to the CTA of the cluster that finishes it: [sender][gate, up][fragment][word]."""
        for number in cutlass.range_constexpr(cute.ceil_div(UNIT_FLOATS, 4 * self.threads)):
            at = 4 * (number * self.threads + thread)
            if at < UNIT_FLOATS:
                kind, f, word = at // HALF_FLOATS, at // 128 % FRAGMENTS, at % 128
                place = part * self.share + (kind * self.owned + f % self.owned) * 128 + word
                push4(box + place, self._add(partial + at, self.warps, UNIT_FLOATS), barrier, f // self.owned)

    @cute.jit
    def _finish(
        self, base, parts: cutlass.Constexpr, stride: cutlass.Constexpr, rows, hidden, unit, part, thread
    ):
        """Add the last partial sums of one word of gate and of up; store SiTU of its two rows and two tokens.

        Threads go by pairs of tokens first, so that whole warps have nothing to do where tokens are few.
        """
        g, f, t = thread % 8, thread // 8 % self.owned, thread // (8 * self.owned)
        if t < 4:
            table = rows.iterator + unit // self.blocks * 8 + 2 * t
            first, second = load_int(table), load_int(table + 1)
            if first >= 0:
                gate = base + f * 128 + 4 * self._place(g, t)
                gates = self._add(gate, parts, stride)
                ups = self._add(gate + self.owned * 128, parts, stride)
                values = [self._situ(a, b) for a, b in zip(gates, ups, strict=True)]
                column = unit % self.blocks * 64 + (part * self.owned + f) * 16 + g
                column = column // GROUP * GROUP + lane_order(column % GROUP)  # 8 further is 2 further
                for j in cutlass.range_constexpr(2):
                    pair = first if j == 0 else second
                    if pair >= 0:
                        place = hidden.iterator + Int64(pair) * hidden.stride[0] + column
                        store_bf16(place, values[j])
                        store_bf16(place + 2, values[j + 2])

    @cute.jit
    def _situ(self, gate, up):
        """SiTU of the BF16-rounded products, in FP32."""
        word = pack((gate, up))[0]
        gate, up = bf16_low(word), bf16_high(word)
        bounded = self.situ_beta * cute.math.tanh(gate * (1 / self.situ_beta)) * sigmoid(gate)
        return bounded * (self.situ_linear_beta * cute.math.tanh(up * (1 / self.situ_linear_beta)))
