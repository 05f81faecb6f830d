"""KDA decode for many requests: persistent CTAs that keep memory busy while they compute (device code).

With hundreds of (request, head) pairs the operator is a stream of 64 KB states in and out of memory. One CTA a
multiprocessor stays on one head, so its weights are loaded once, and walks over requests. The copy engine brings
everything a request needs to shared memory, several requests ahead: each warp owns 16 value channels of the state and
a ring of slots for them; the CTA shares a ring of slots for projections and windows. So an iteration meets no memory
latency, and its arithmetic hides behind the transfers of the others.
"""

import cutlass
from cutlass import BFloat16, Float32, Int32, Uint32, cute

from runtime.kernels.common.launch.cute_ops import (
    WARP,
    bf16_low,
    copy_bulk,
    fma,
    load_bf16_bits,
    load_int,
    load_shared4,
    load_shared_bf16_bits,
    load_shared_words,
    load_state,
    shared_bytes,
    sigmoid,
    store_bf16,
    warp_sum,
)
from runtime.kernels.kda.cute_kernel import HEAD, LANES, THREADS, WARPS, KdaDecodeKernel, V, at

STAGES = 3  # requests on their way or in use, per multiprocessor
WARP_FLOATS = HEAD // WARPS * HEAD  # of a state, per warp
# Rows of 128 BF16 in an input slot: three taps each of q, k, v; the new q, k, v; the output gate; f_a.
TAP_ROW, INPUT_ROW, GATE_ROW, F_A_ROW = 0, 9, 12, 13
INPUT_ROWS = 14


class KdaStreamKernel(KdaDecodeKernel):
    """One launch of one-token decode; `lanes` CTAs per head, each for every `lanes`-th request (at most 32)."""

    def __init__(self, heads, overlap, lanes):
        super().__init__(heads, 1, overlap, cluster=1, resident=1, alone=True)
        self.lanes = lanes
        self.smem_bytes = shared_bytes(self._needed_bytes(), 1)

    def _needed_bytes(self):
        states, inputs = 4 * WARPS * STAGES * WARP_FLOATS, 2 * STAGES * INPUT_ROWS * HEAD
        return states + inputs + 4 * (4 * HEAD + WARPS) + 8 * (WARPS + 1) * STAGES + 256

    @cute.jit
    def __call__(
        self,
        projected,
        f_b,
        conv_weight,
        A_log,
        dt_bias,
        norm_weight,
        conv_state,
        state,
        slots,
        accepted,
        out,
        lower_bound,
        eps,
        stream,
    ):
        """Launch for `slots.shape[0]` requests; `accepted` is not used."""
        weights = (f_b, conv_weight, A_log, dt_bias, norm_weight)
        self.kernel(projected, *weights, conv_state, state, slots, out, lower_bound, eps).launch(
            grid=(self.lanes, self.heads, 1),
            block=(THREADS, 1, 1),
            smem=self.smem_bytes,
            stream=stream,
            use_pdl=True,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(
        self,
        projected: cute.Tensor,
        f_b: cute.Tensor,
        conv_weight: cute.Tensor,
        A_log: cute.Tensor,
        dt_bias: cute.Tensor,
        norm_weight: cute.Tensor,
        conv_state: cute.Tensor,
        state: cute.Tensor,
        slots: cute.Tensor,
        out: cute.Tensor,
        lower_bound: Float32,
        eps: Float32,
    ):
        part, head, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        lane, warp = thread % WARP, cute.arch.make_warp_uniform(thread // WARP)
        if cutlass.const_expr(self.early_trigger):
            cute.arch.griddepcontrol_launch_dependents()
        smem = cutlass.utils.SmemAllocator()
        ring = smem.allocate_tensor(Float32, cute.make_layout(WARPS * STAGES * WARP_FLOATS), 128).iterator
        inputs = smem.allocate_tensor(BFloat16, cute.make_layout(STAGES * INPUT_ROWS * HEAD), 128).iterator
        planes = cute.make_layout((4, 1, HEAD), stride=(HEAD, HEAD, 1))
        vectors = smem.allocate_tensor(Float32, planes, 16)
        squares = smem.allocate_tensor(Float32, cute.make_layout(WARPS), 16)
        full = smem.allocate_array(cutlass.Uint64, (WARPS + 1) * STAGES)
        mine, my_ring = full + warp * STAGES, ring + warp * (STAGES * WARP_FLOATS)
        arrived = full + WARPS * STAGES  # of the input ring
        if thread == 0:
            for i in cutlass.range_constexpr((WARPS + 1) * STAGES):
                cute.arch.mbarrier_init(full + i, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        requests = slots.shape[0]
        count = (requests - part + self.lanes - 1) // self.lanes
        slot_of = Int32(0)  # lane i holds the slot of this CTA's i-th request
        if lane < count:
            slot_of = load_int(at(slots, part + lane * self.lanes, 0))
        fragments = self._load_f_b(f_b, head, warp, lane)
        channel = thread % HEAD
        qk_column = (thread // HEAD) * self.width + head * HEAD + channel
        v_column = 2 * self.width + head * HEAD + channel
        qk_taps = load_state(at(conv_weight, qk_column, 0))
        v_taps = load_state(at(conv_weight, v_column, 0))
        slope = cute.math.exp(load_state(A_log.iterator + head, 1)[0], fastmath=True)
        gate_channel = head * HEAD + 16 * warp + lane // 4
        bias = [load_state(dt_bias.iterator + gate_channel + 8 * i, 1)[0] for i in range(2)]
        step: cutlass.Constexpr = LANES // (2 * self.lane_rows)
        row = warp * self.warp_rows + 2 * ((lane % 8) // step) + lane // LANES
        norm = load_state(norm_weight.iterator + row, 1)[0]
        owns = (lane % LANES >= 8) & (lane % step == 0)
        if cutlass.const_expr(not self.settled):
            self._wait()
        for i in cutlass.range_constexpr(STAGES):
            self._request_state(state, slot_of, i, count, head, warp, lane, my_ring, mine)
        if cutlass.const_expr(self.settled):
            self._wait()
        beta_of = Uint32(0)  # lane i holds the beta logit of this CTA's i-th request
        if lane < count:
            beta_of = load_bf16_bits(at(projected, part + lane * self.lanes, 4 * self.width + HEAD + head))
        for i in cutlass.range_constexpr(STAGES):
            self._request_inputs(
                projected, conv_state, slot_of, i, count, part, head, warp, lane, inputs, arrived
            )

        stage, phase = Int32(0), Int32(0)
        for i in cutlass.range(count, unroll=1):
            request = part + i * self.lanes
            slot = cute.arch.shuffle_sync(slot_of, i)
            beta = sigmoid(bf16_low(cute.arch.shuffle_sync(beta_of, i)))
            if slot > 0:
                cute.arch.mbarrier_wait(arrived + stage, phase)
                held_inputs = inputs + stage * (INPUT_ROWS * HEAD)
                features = [
                    load_shared_words(held_inputs + F_A_ROW * HEAD + 8 * (lane % 4) + 32 * j)
                    for j in range(4)
                ]
                qk_window = self._read_window(held_inputs, thread // HEAD, channel)
                v_window = self._read_window(held_inputs, 2, channel)
                gate = load_shared_bf16_bits(held_inputs + GATE_ROW * HEAD + row)
                self._forget(fragments, features, vectors, slope, bias, lower_bound, warp, lane)
                vectors[thread // HEAD, 0, channel] = self._convolve(qk_window, qk_taps)
                value = self._convolve(v_window, v_taps)
                if thread < HEAD:
                    vectors[V, 0, channel] = value
                    self._store_window(v_window, conv_state, slot, v_column)
                self._store_window(qk_window, conv_state, slot, qk_column)
                cute.arch.sync_threads()
                ahead = i + STAGES
                self._request_inputs(
                    projected, conv_state, slot_of, ahead, count, part, head, warp, lane, inputs, arrived
                )
                cute.arch.mbarrier_wait(mine + stage, phase)
                held = self._read_cell(my_ring + stage * WARP_FLOATS, lane)
                operands = self._token_vectors(vectors, 0, row, lane)
                scale = self._scalars(operands[0], operands[1], lane, LANES)
                o, held = self._delta_rule(held, operands, scale, beta, lane, step)
                self._store_state_rows(held, state, slot, head, 0, warp, lane)
                square = warp_sum(o * o if owns else Float32(0))
                if lane == 0:
                    squares[warp] = square
                cute.arch.sync_threads()
                total = self._sum_squares(squares)
                rms = cute.math.rsqrt(fma(total, Float32(1 / HEAD), eps), fastmath=True)
                if owns:
                    store_bf16(at(out, request, head * HEAD + row), o * rms * norm * sigmoid(bf16_low(gate)))
            else:
                cute.arch.mbarrier_wait(arrived + stage, phase)
                cute.arch.mbarrier_wait(mine + stage, phase)
                if thread < HEAD:
                    store_bf16(at(out, request, head * HEAD + thread), 0.0)
                cute.arch.sync_threads()
                ahead = i + STAGES
                self._request_inputs(
                    projected, conv_state, slot_of, ahead, count, part, head, warp, lane, inputs, arrived
                )
            self._request_state(state, slot_of, i + STAGES, count, head, warp, lane, my_ring, mine)
            stage += 1
            if stage == STAGES:
                stage, phase = Int32(0), phase ^ 1

    @cute.jit
    def _request_inputs(
        self, projected, conv_state, slot_of, i, count, part, head, warp, lane, inputs, arrived
    ):
        """Warp 0 starts copying the CTA's `i`-th projections and windows; an inactive request completes at once."""
        if (warp == 0) & (i < count):
            slot = cute.arch.shuffle_sync(slot_of, i)
            stage = i % STAGES
            place = inputs + stage * (INPUT_ROWS * HEAD) + lane * HEAD
            if lane == 0:
                if slot > 0:
                    cute.arch.mbarrier_arrive_and_expect_tx(arrived + stage, 2 * INPUT_ROWS * HEAD)
                else:
                    cute.arch.mbarrier_arrive(arrived + stage)
            cute.arch.sync_warp()
            if slot > 0:
                request = part + i * self.lanes
                if lane < INPUT_ROW:  # tap lane % 3 of q, k, v
                    source = at(conv_state, slot, lane % 3, (lane // 3) * self.width + head * HEAD)
                    copy_bulk(place, source, 2 * HEAD, arrived + stage)
                elif lane < F_A_ROW:  # q, k, v, gate
                    source = at(projected, request, (lane - INPUT_ROW) * self.width + head * HEAD)
                    copy_bulk(place, source, 2 * HEAD, arrived + stage)
                elif lane == F_A_ROW:
                    copy_bulk(place, at(projected, request, 4 * self.width), 2 * HEAD, arrived + stage)

    @cute.jit
    def _read_window(self, held_inputs, part, channel):
        """BF16 bits of the three taps of q, k or v (`part` 0, 1, 2), and its new input."""
        taps = held_inputs + (TAP_ROW + 3 * part) * HEAD + channel
        window = [load_shared_bf16_bits(taps + t * HEAD) for t in range(3)]
        return [*window, load_shared_bf16_bits(held_inputs + (INPUT_ROW + part) * HEAD + channel)]

    @cute.jit
    def _request_state(self, state, slot_of, i, count, head, warp, lane, ring, full):
        """Start copying this warp's rows of the CTA's `i`-th state; an inactive request completes at once."""
        if i < count:
            slot = cute.arch.shuffle_sync(slot_of, i)
            stage = i % STAGES
            if lane == 0:
                if slot > 0:
                    cute.arch.mbarrier_arrive_and_expect_tx(full + stage, 4 * WARP_FLOATS)
                    source = at(state, slot, head, warp * self.warp_rows, 0)
                    copy_bulk(ring + stage * WARP_FLOATS, source, 4 * WARP_FLOATS, full + stage)
                else:
                    cute.arch.mbarrier_arrive(full + stage)

    @cute.jit
    def _read_cell(self, cell, lane):
        """This lane's state rows from the ring, in the layout of `_load_state_rows`."""
        held = []
        for r in cutlass.range_constexpr(self.lane_rows):
            pointer = cell + (2 * r + lane // LANES) * HEAD + 4 * (lane % LANES)
            held.append([*load_shared4(pointer), *load_shared4(pointer + HEAD // 2)])
        return held

    @cute.jit
    def _sum_squares(self, squares):
        low, high = load_shared4(squares.iterator), load_shared4(squares.iterator + 4)
        return ((low[0] + low[1]) + (low[2] + low[3])) + ((high[0] + high[1]) + (high[2] + high[3]))
