"""KDA decode and verify in one launch: forget projection, convolution, gate, recurrence, gated norm (device code).

One cluster per (request, head); its CTAs cut the head's 128 value channels, which the delta rule never mixes, so
each CTA keeps its rows of the state in registers and needs the others only for the mean square of the output
norm. All memory that does not depend on arithmetic is requested before the first use: weights, and state and
window if they are settled (see `spec`), ahead of the dependency wait; then the rest together.

Phases, with CTA barriers between them:
  1. F_B by tensor cores (a warp owns 16 key channels; tokens are the columns), convolution and SiLU of q, k, v;
     then one warp per token forms the token's scalars.
  2. the delta rule, token by token, rows private to 16 lanes, no barrier. With S' the decayed state,
     e = beta (v - S'k) and o = S'q + e (k·q), so both dot products of a row come from one pass over it.
  3. gated RMSNorm after one exchange of partial squares through distributed shared memory.
"""

import cutlass
from cutlass import Float32, Int32, Int64, cute

from runtime.kernels.common.launch.cute_ops import (
    WARP,
    bf16_low,
    fma,
    load_activation,
    load_bf16_bits,
    load_int,
    load_shared4,
    load_state,
    load_weight,
    mma_bf16,
    pack,
    push,
    shared_bytes,
    sigmoid,
    store_bf16,
    store_bf16_bits,
    store_floats,
    store_shared4,
    wait_pushes,
    warp_sums,
)

HEAD = 128  # channels of a head: keys and values
TAPS = 4  # of the short convolution
WARPS = 8
THREADS = WARPS * WARP
LANES = 16  # that share one state row, eight columns each
Q, K, DECAY, V = range(4)  # planes of the shared vectors


def at(tensor, *index):
    """Pointer to `tensor[index]`; the first index (a slot or row) is multiplied in 64 bits."""
    offset = Int64(index[0]) * tensor.stride[0]
    for axis, n in enumerate(index[1:], start=1):
        offset += n * tensor.stride[axis]
    return tensor.iterator + offset


class KdaDecodeKernel:
    """One launch of the operator; the constructor's arguments are compile-time.

    heads: local heads H. tokens: query tokens per request (1 is decode, 2…8 verify). cluster: CTAs per head.
    overlap: with `state` and `conv_state` as the state inputs. resident: CTAs that must fit on a multiprocessor at
    once (limits registers). alone: whether no more than that may share it.
    """

    def __init__(self, heads, tokens, overlap, cluster, resident, alone):
        self.heads, self.tokens = heads, tokens
        self.settled, self.early_trigger = overlap.settled, overlap.early_trigger
        self.cluster, self.resident = cluster, resident
        self.width = heads * HEAD
        self.rows = HEAD // cluster  # value channels of a CTA
        self.warp_rows = self.rows // WARPS
        self.lane_rows = self.warp_rows * LANES // WARP
        self.partials = WARPS * cluster
        needed = 4 * tokens * (4 * HEAD + 4 + self.partials) + 64
        self.smem_bytes = shared_bytes(needed, resident) if alone else needed

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
        """Launch for `slots.shape[0]` requests; shapes are in `spec`."""
        weights = (f_b, conv_weight, A_log, dt_bias, norm_weight)
        self.kernel(projected, *weights, conv_state, state, slots, accepted, out, lower_bound, eps).launch(
            grid=(self.cluster, self.heads, slots.shape[0]),
            block=(THREADS, 1, 1),
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
        projected: cute.Tensor,
        f_b: cute.Tensor,
        conv_weight: cute.Tensor,
        A_log: cute.Tensor,
        dt_bias: cute.Tensor,
        norm_weight: cute.Tensor,
        conv_state: cute.Tensor,
        state: cute.Tensor,
        slots: cute.Tensor,
        accepted: cute.Tensor,
        out: cute.Tensor,
        lower_bound: Float32,
        eps: Float32,
    ):
        part, head, request = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        if cutlass.const_expr(self.early_trigger):
            cute.arch.griddepcontrol_launch_dependents()
        start = Int32(0)
        if cutlass.const_expr(self.tokens > 1):
            start = load_int(accepted.iterator + request) - 1
        slot = load_int(at(slots, request, start))
        if slot <= 0:
            self._wait()
            if thread < self.rows:
                for t in cutlass.range_constexpr(self.tokens):
                    channel = head * HEAD + part * self.rows + thread
                    store_bf16(at(out, request * self.tokens + t, channel), 0.0)
        else:
            place = (part, head, request, thread % WARP, thread // WARP, thread)
            weights = (f_b, conv_weight, A_log, dt_bias, norm_weight)
            self._request(
                projected, weights, conv_state, state, (slots, slot, start), out, lower_bound, eps, place
            )

    @cute.jit
    def _request(self, projected, weights, conv_state, state, slot_of, out, lower_bound, eps, place):
        """All tokens of one active request for this CTA's rows."""
        f_b, conv_weight, A_log, dt_bias, norm_weight = weights
        part, head, request, lane, warp, thread = place
        slots, slot, start = slot_of
        vectors, scalars, mailbox, barrier = self._open_exchange(thread)

        # Weights, ahead of the wait. Threads 0-127 convolve q and v, threads 128-255 k.
        fragments = self._load_f_b(f_b, head, warp, lane)
        channel = thread % HEAD
        qk_column = (thread // HEAD) * self.width + head * HEAD + channel
        v_channel = part * self.rows + cutlass.min(channel, self.rows - 1)
        v_column = 2 * self.width + head * HEAD + v_channel
        qk_taps = load_state(at(conv_weight, qk_column, 0))
        v_taps = load_state(at(conv_weight, v_column, 0))
        slope = cute.math.exp(load_state(A_log.iterator + head, 1)[0], fastmath=True)
        gate_channel = head * HEAD + 16 * warp + lane // 4
        bias = [load_state(dt_bias.iterator + gate_channel + 8 * i, 1)[0] for i in range(2)]
        # After the reductions of phase 2 the upper half of a 16-lane group holds one output row per `step` lanes.
        step: cutlass.Constexpr = LANES // (2 * self.lane_rows)
        row = warp * self.warp_rows + 2 * ((lane % 8) // step) + lane // LANES
        out_channel = head * HEAD + part * self.rows + row
        norm = load_state(norm_weight.iterator + part * self.rows + row, 1)[0]
        conv_slot = slot
        if cutlass.const_expr(self.tokens > 1):
            conv_slot = load_int(at(slots, request, 0))
        targets = [load_int(at(slots, request, t)) for t in range(self.tokens)]
        if cutlass.const_expr(not self.settled):
            self._wait()
        held = self._load_state_rows(state, slot, head, part, warp, lane)
        qk_window = self._load_window(conv_state, conv_slot, start, qk_column)
        v_window = self._load_window(conv_state, conv_slot, start, v_column)
        if cutlass.const_expr(self.settled):
            self._wait()

        first = request * self.tokens
        features = self._load_f_a(projected, first, lane)
        qk_window += self._load_inputs(projected, first, qk_column)
        v_window += self._load_inputs(projected, first, v_column)
        betas = self._load_inputs(projected, first, 4 * self.width + HEAD + head)
        gates = self._load_inputs(projected, first, 3 * self.width + out_channel)

        self._forget(fragments, features, vectors, slope, bias, lower_bound, warp, lane)
        for t in cutlass.range_constexpr(self.tokens):
            vectors[thread // HEAD, t, channel] = self._convolve(qk_window[t : t + TAPS], qk_taps)
            value = self._convolve(v_window[t : t + TAPS], v_taps)
            if thread < self.rows:
                vectors[V, t, channel] = value
        cute.arch.sync_threads()
        if cutlass.const_expr(self.tokens > 1):
            if warp < self.tokens:
                self._store_scalars(vectors, scalars, warp, lane)
            cute.arch.sync_threads()

        outputs, squares = [], []
        owns = (lane % LANES >= 8) & (lane % step == 0)
        operands = self._token_vectors(vectors, 0, row, lane)
        for t in cutlass.range_constexpr(self.tokens):
            following = operands
            if cutlass.const_expr(t + 1 < self.tokens):
                following = self._token_vectors(vectors, t + 1, row, lane)
            if cutlass.const_expr(self.tokens > 1):
                scale = load_shared4(scalars.iterator + 4 * t)
            else:
                scale = self._scalars(operands[0], operands[1], lane, LANES)
            o, held = self._delta_rule(held, operands, scale, sigmoid(bf16_low(betas[t])), lane, step)
            if targets[t] > 0:
                self._store_state_rows(held, state, targets[t], head, part, warp, lane)
            squares.append(o * o if owns else Float32(0))
            outputs.append(o)
            operands = following
        cute.arch.cluster_wait()
        self._push_squares(squares, mailbox, barrier, part, warp, lane)

        wait_pushes(barrier)
        for t in cutlass.range_constexpr(self.tokens):
            total = self._add_up(mailbox.iterator + t * self.partials)
            rms = cute.math.rsqrt(fma(total, Float32(1 / HEAD), eps), fastmath=True)
            if owns:
                y = outputs[t] * rms * norm * sigmoid(bf16_low(gates[t]))
                store_bf16(at(out, first + t, out_channel), y)
        # Every CTA of the cluster has read the q and k windows before it pushed, so CTA 0 may replace them now.
        if part == 0:
            self._store_window(qk_window, conv_state, conv_slot, qk_column)
        if thread < self.rows:
            self._store_window(v_window, conv_state, conv_slot, v_column)

    @cute.jit
    def _wait(self):
        """Wait for the preceding kernel, then let the next one start: it may rely on all before this one."""
        cute.arch.griddepcontrol_wait()
        if cutlass.const_expr(not self.early_trigger):
            cute.arch.griddepcontrol_launch_dependents()

    @cute.jit
    def _open_exchange(self, thread):
        """Allocate shared memory and arm the barrier; the cluster may push after `cluster_wait`."""
        smem = cutlass.utils.SmemAllocator()
        planes = cute.make_layout((4, self.tokens, HEAD), stride=(self.tokens * HEAD, HEAD, 1))
        vectors = smem.allocate_tensor(Float32, planes, 16)
        scalars = smem.allocate_tensor(Float32, cute.make_layout((self.tokens, 4), stride=(4, 1)), 16)
        boxes = cute.make_layout((self.tokens, self.partials), stride=(self.partials, 1))
        mailbox = smem.allocate_tensor(Float32, boxes, 16)
        barrier = smem.allocate_array(cutlass.Uint64, 1)
        if thread == 0:
            cute.arch.mbarrier_init(barrier, 1)
            cute.arch.mbarrier_init_fence()
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, 4 * self.tokens * self.partials)
        cute.arch.cluster_arrive_relaxed()
        return vectors, scalars, mailbox, barrier

    # ---- phase 1: forget gate and convolution -------------------------------------------------------------

    @cute.jit
    def _load_f_b(self, f_b, head, warp, lane):
        """A-fragments of this warp's 16 rows of F_B: chunk i holds k = 8 * (lane % 4 + 4 i) + 0…7."""
        fragments = []
        for i in cutlass.range_constexpr(4):
            for half in cutlass.range_constexpr(2):
                row = head * HEAD + 16 * warp + 8 * half + lane // 4
                fragments.append(load_weight(at(f_b, row, 8 * (lane % 4 + 4 * i))))
        return fragments

    @cute.jit
    def _load_f_a(self, projected, first, lane):
        """B-fragments of the tokens' low-rank features; columns past the last token repeat the first one."""
        token = lane // 4
        if token >= self.tokens:
            token = Int32(0)
        column = 4 * self.width + 8 * (lane % 4)
        return [load_activation(at(projected, first + token, column + 32 * i)) for i in range(4)]

    @cute.jit
    def _forget(self, fragments, features, vectors, slope, bias, lower_bound, warp, lane):
        """Decay of 16 key channels for every token, to shared memory. The projection is rounded to BF16."""
        raw = (Float32(0),) * 4
        for i in cutlass.range_constexpr(4):
            low, high, feature = fragments[2 * i], fragments[2 * i + 1], features[i]
            for step in cutlass.range_constexpr(2):
                x, y = 2 * step, 2 * step + 1
                raw = mma_bf16((low[x], high[x], low[y], high[y]), (feature[x], feature[y]), raw)
        for j in cutlass.range_constexpr(4):
            token = 2 * (lane % 4) + j % 2
            rounded = bf16_low(pack((raw[j], Float32(0)))[0])
            log_decay = lower_bound * sigmoid(slope * (rounded + bias[j // 2]))
            decay = cute.math.exp(log_decay, fastmath=True)
            if token < self.tokens:
                vectors[DECAY, token, 16 * warp + lane // 4 + 8 * (j // 2)] = decay

    @cute.jit
    def _load_window(self, conv_state, slot, start, column):
        """BF16 bits of a channel's three taps before the step."""
        return [load_bf16_bits(at(conv_state, slot, start + i, column)) for i in range(TAPS - 1)]

    @cute.jit
    def _load_inputs(self, projected, first, column):
        """BF16 bits of one projected column for every token of the step."""
        return [load_bf16_bits(at(projected, first + t, column)) for t in range(self.tokens)]

    @cute.jit
    def _convolve(self, window, taps):
        total = Float32(0)
        for bits, tap in zip(window, taps, strict=True):
            total = fma(bf16_low(bits), tap, total)
        return total * sigmoid(total)

    @cute.jit
    def _store_window(self, window, conv_state, slot, column):
        """The window to continue from: the two newest old taps, then the inputs of the step."""
        for i, bits in enumerate(window[1:]):
            store_bf16_bits(at(conv_state, slot, i, column), bits)

    # ---- phase 2: the delta rule ---------------------------------------------------------------------------

    @cute.jit
    def _state_pointer(self, state, slot, head, part, warp, lane, r):
        row = part * self.rows + warp * self.warp_rows + 2 * r + lane // LANES
        return at(state, slot, head, row, 4 * (lane % LANES))

    @cute.jit
    def _load_state_rows(self, state, slot, head, part, warp, lane):
        """This lane's state: `lane_rows` rows, columns 4 j … 4 j + 3 and 64 more with j = lane % 16."""
        held = []
        for r in cutlass.range_constexpr(self.lane_rows):
            pointer = self._state_pointer(state, slot, head, part, warp, lane, r)
            held.append([*load_state(pointer), *load_state(pointer + HEAD // 2)])
        return held

    @cute.jit
    def _store_state_rows(self, held, state, slot, head, part, warp, lane):
        for r in cutlass.range_constexpr(self.lane_rows):
            pointer = self._state_pointer(state, slot, head, part, warp, lane, r)
            store_floats(pointer, tuple(held[r][:4]))
            store_floats(pointer + HEAD // 2, tuple(held[r][4:]))

    @cute.jit
    def _columns(self, vectors, plane, token, lane):
        """This lane's eight columns of one shared vector."""
        pointer = vectors.iterator + (plane * self.tokens + token) * HEAD + 4 * (lane % LANES)
        return [*load_shared4(pointer), *load_shared4(pointer + HEAD // 2)]

    @cute.jit
    def _token_vectors(self, vectors, token, row, lane):
        """(q, k, decay) of this lane's columns and the value of `row`."""
        columns = [self._columns(vectors, plane, token, lane) for plane in (Q, K, DECAY)]
        return (*columns, vectors[V, token, row])

    @cute.jit
    def _scalars(self, q, k, lane, lanes: cutlass.Constexpr):
        """(query scale, key scale, scaled q·k) of a token from this lane's columns, over groups of `lanes` lanes."""
        sums = warp_sums([self._dot(q, q), self._dot(k, k), self._dot(q, k), Float32(0)], lane, lanes)
        group = lane - lane % lanes
        q_square = cute.arch.shuffle_sync(sums, group)
        k_square = cute.arch.shuffle_sync(sums, group + lanes // 4)
        product = cute.arch.shuffle_sync(sums, group + lanes // 2)
        q_scale = cute.math.rsqrt(q_square + 1e-6, fastmath=True) * HEAD**-0.5
        k_scale = cute.math.rsqrt(k_square + 1e-6, fastmath=True)
        return q_scale, k_scale, product * q_scale * k_scale

    @cute.jit
    def _store_scalars(self, vectors, scalars, token, lane):
        """One warp: the scalars of one token, to shared memory."""
        base = vectors.iterator + token * HEAD + 4 * lane
        q, k = load_shared4(base), load_shared4(base + self.tokens * HEAD)
        q_scale, k_scale, product = self._scalars(q, k, lane, WARP)
        if lane == 0:
            store_shared4(scalars.iterator + 4 * token, (q_scale, k_scale, product, Float32(0)))

    @cute.jit
    def _delta_rule(self, held, operands, scale, beta, lane, step):
        """One token. Returns (output, new state rows); the output is valid in the upper half of a group."""
        q, k, decay, value = operands
        q_scale, k_scale, product = scale[0], scale[1], scale[2]
        held = [[s * d for s, d in zip(line, decay, strict=True)] for line in held]
        dots = [self._dot(line, k) for line in held] + [self._dot(line, q) for line in held]
        total = warp_sums(dots, lane, LANES)
        error = beta * (value - total * k_scale)  # valid in the lower half of the group
        o = fma(cute.arch.shuffle_sync_bfly(error, 8), product, total * q_scale)
        key = [x * k_scale for x in k]
        group = lane - lane % LANES
        updated = []
        for r in cutlass.range_constexpr(self.lane_rows):
            row_error = cute.arch.shuffle_sync(error, group + r * step)
            updated.append([fma(row_error, x, s) for x, s in zip(key, held[r], strict=True)])
        return o, updated

    @cute.jit
    def _push_squares(self, squares, mailbox, barrier, part, warp, lane):
        """Send this warp's sum of squares of every token to every CTA of the cluster."""
        count: cutlass.Constexpr = 1 << (self.tokens - 1).bit_length()
        group: cutlass.Constexpr = WARP // count  # lanes that hold the same token's sum
        total = warp_sums([*squares, *[Float32(0)] * (count - self.tokens)], lane)
        token = lane // group
        if token < self.tokens:
            for first in cutlass.range_constexpr(0, self.cluster, group):
                peer = first + lane % group
                if peer < self.cluster:
                    push(mailbox.iterator + token * self.partials + part * WARPS + warp, total, barrier, peer)

    @cute.jit
    def _dot(self, a, b):
        total = Float32(0)
        for x, y in zip(a, b, strict=True):
            total = fma(x, y, total)
        return total

    @cute.jit
    def _add_up(self, row):
        """Sum of one mailbox row, always in the same order."""
        sums = [Float32(0)] * 4
        for i in cutlass.range_constexpr(self.partials // 4):
            sums = [a + b for a, b in zip(sums, load_shared4(row + 4 * i), strict=True)]
        return (sums[0] + sums[1]) + (sums[2] + sums[3])
