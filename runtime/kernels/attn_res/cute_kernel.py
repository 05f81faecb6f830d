"""Attention Residuals on a cluster of CTAs per token (device code).

A token's `hidden` columns are cut over the CTAs of a cluster, eight columns a thread, so all sources of the token
are read at once and stay in registers. Two exchanges through distributed shared memory join the CTAs:

  1. dot product and square of every stored block; then everyone knows the blocks' shares relative to each other
     and forms m = sum_i exp(s_i - top) block_i;
  2. with p the prefix after the delta: p·w, p·p, m·p and m·m. The result is (a m + b p) / c with scalars a, b, c, so
     its mean square follows from the last three and needs no exchange of its own.

Only step 2 depends on the delta, which the preceding kernel writes. If the prefix and the blocks are settled (see
`spec`), everything else happens before the dependency wait, while that kernel still runs.

A CTA first adds up its warps, because the time of an exchange grows with the number of remote stores; then every
CTA sends its sums to every CTA of the cluster, and everyone adds them in the same order. A token's bits do not
depend on the batch.
"""

import cutlass
from cutlass import Float32, Int64, cute

from runtime.kernels.common.launch.cute_ops import (
    WARP,
    again,
    fma,
    load_activation,
    load_shared4,
    load_weight,
    pack,
    push,
    shared_bytes,
    store_words,
    unpack,
    wait_pushes,
    warp_sums,
)

COLUMNS = 8  # per thread: one 16-byte access per source
MAX_CLUSTER = 8


class AttnResCluster:
    """One launch of the operator; the constructor's arguments are compile-time.

    hidden: D. num_blocks: stored blocks among the sources. write: block that stores the new prefix, or None.
    has_delta, has_norm: whether `delta` is added and `out_norm` applied. overlap: with `prefix` and `blocks` as the
    state inputs. cluster: CTAs per token. resident: CTAs that may share a multiprocessor; from 5 on, registers are
    limited so that five do.
    """

    def __init__(self, hidden, num_blocks, write, has_delta, has_norm, overlap, cluster, resident):
        self.hidden, self.num_blocks, self.write = hidden, num_blocks, write
        self.has_delta, self.has_norm = has_delta, has_norm
        self.settled, self.early_trigger = overlap.settled, overlap.early_trigger
        self.cluster, self.threads = cluster, hidden // cluster // COLUMNS
        self.warps = self.threads // WARP
        self.must_fit = 5 if resident > 4 else 1  # four fit with the registers that the kernel wants
        self.warps_padded = -(-self.warps // 4) * 4
        self.padded = 1 << max(num_blocks - 1, 0).bit_length()  # blocks, rounded up to a power of two
        self.block_rows = 2 * self.padded if num_blocks else 0  # [dot of block i | square of block i]
        # Without blocks the result is the prefix itself, and only its square is needed, if anything.
        self.prefix_rows = 4 if num_blocks else int(has_norm)
        rows = self.block_rows + max(self.prefix_rows, 1)
        self.rows = rows
        self.smem_bytes = shared_bytes(4 * rows * (self.warps_padded + MAX_CLUSTER) + 128, resident)

    @cute.jit
    def __call__(self, prefix, delta, blocks, score_norm, score_vec, out_norm, out, eps, out_eps, stream):
        """Launch for every row of `prefix` [T, D]; blocks [T, B, D]; weights [D]; out [T, D]."""
        self.kernel(prefix, delta, blocks, score_norm, score_vec, out_norm, out, eps, out_eps).launch(
            grid=(self.cluster, prefix.shape[0], 1),
            block=(self.threads, 1, 1),
            cluster=(self.cluster, 1, 1),
            smem=self.smem_bytes,
            stream=stream,
            use_pdl=True,
            min_blocks_per_mp=self.must_fit,
            preferred_smem_carveout=-1,  # the driver's choice; without a value the DSL asks the driver
        )

    @cute.kernel
    def kernel(
        self,
        prefix: cute.Tensor,
        delta: cute.Tensor,
        blocks: cute.Tensor,
        score_norm: cute.Tensor,
        score_vec: cute.Tensor,
        out_norm: cute.Tensor,
        out: cute.Tensor,
        eps: Float32,
        out_eps: Float32,
    ):
        part, token, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        if cutlass.const_expr(self.early_trigger):
            cute.arch.griddepcontrol_launch_dependents()
        place = (part, thread % WARP, thread // WARP)
        column = (part * self.threads + thread) * COLUMNS
        row = prefix.iterator + Int64(token) * prefix.stride[0] + column
        block_row = blocks.iterator + Int64(token) * blocks.stride[0] + column
        exchange = self._open_exchange(thread)
        score_weight, gain = self._weights(score_norm, score_vec, out_norm, column)
        if cutlass.const_expr(not self.settled):
            self._wait()

        current = load_activation(row)
        sources = [load_activation(block_row + b * blocks.stride[1]) for b in range(self.num_blocks)]
        cute.arch.cluster_wait()
        mix, top, whole = (Float32(0),) * COLUMNS, Float32(0), Float32(0)
        if cutlass.const_expr(self.num_blocks > 0):
            mix, top, whole = self._mix_blocks(sources, score_weight, exchange, eps, place)

        if cutlass.const_expr(self.settled):
            self._wait()
        if cutlass.const_expr(self.has_delta):
            step = load_activation(delta.iterator + Int64(token) * delta.stride[0] + column)
            current = pack([a + b for a, b in zip(unpack(current), unpack(step), strict=True)])
            store_words(row, current)
        if cutlass.const_expr(self.write is not None):
            store_words(block_row + self.write * blocks.stride[1], current)
        result = self._join_prefix(
            unpack(current), mix, top, whole, score_weight, gain, exchange, eps, out_eps, place
        )
        store_words(out.iterator + Int64(token) * out.stride[0] + column, pack(result))

    @cute.jit
    def _wait(self):
        """Wait for the preceding kernel, then let the next one start: it may rely on all before this one."""
        cute.arch.griddepcontrol_wait()
        if cutlass.const_expr(not self.early_trigger):
            cute.arch.griddepcontrol_launch_dependents()

    @cute.jit
    def _weights(self, score_norm, score_vec, out_norm, column):
        """This thread's columns of the score weight and of the output gain, in FP32."""
        score_weight, gain = (), ()
        if cutlass.const_expr(self.num_blocks > 0):
            norm = unpack(load_weight(score_norm.iterator + column))
            vec = unpack(load_weight(score_vec.iterator + column))
            score_weight = tuple(a * b for a, b in zip(norm, vec, strict=True))
        if cutlass.const_expr(self.has_norm):
            gain = unpack(load_weight(out_norm.iterator + column))
        return score_weight, gain

    # ---- arithmetic ---------------------------------------------------------------------------------------

    @cute.jit
    def _mix_blocks(self, sources, score_weight, exchange, eps, place):
        """(sum of exp(s_i - top) block_i, top, sum of exp(s_i - top)) over the stored blocks."""
        values = [unpack(source) for source in sources]
        fill = [Float32(0)] * (self.padded - self.num_blocks)
        dots = [self._dot(value, score_weight) for value in values]
        squares = [self._dot(value, value) for value in values]
        totals = self._exchange([*dots, *fill, *squares, *fill], exchange, 0, place)
        scores = []
        for i in cutlass.range_constexpr(self.num_blocks):
            scores.append(totals[i] * self._rsqrt_mean(totals[self.padded + i], eps))
        top = scores[0]
        for score in scores[1:]:
            top = cute.arch.fmax(top, score)
        mix, whole = [Float32(0)] * COLUMNS, Float32(0)
        # Between the two uses the sources stay packed: half the registers.
        values = [unpack(tuple(again(word) for word in source)) for source in sources]
        for value, score in zip(values, scores, strict=True):
            share = cute.math.exp(score - top, fastmath=True)
            whole += share
            mix = [fma(share, x, old) for x, old in zip(value, mix, strict=True)]
        return tuple(mix), top, whole

    @cute.jit
    def _join_prefix(self, prefix, mix, top, whole, score_weight, gain, exchange, eps, out_eps, place):
        """This thread's columns of the (normalised) mixture of the blocks and the prefix."""
        if cutlass.const_expr(self.num_blocks == 0):
            result = prefix
            if cutlass.const_expr(self.has_norm):
                square = self._exchange([self._dot(prefix, prefix)], exchange, 1, place)[0]
                scale = self._rsqrt_mean(square, out_eps)
                result = tuple(x * scale * g for x, g in zip(prefix, gain, strict=True))
            return result
        partial = [
            self._dot(prefix, score_weight),
            self._dot(prefix, prefix),
            self._dot(mix, prefix),
            self._dot(mix, mix),
        ]
        dot, square, cross, mix_square = self._exchange(partial, exchange, 1, place)
        score = dot * self._rsqrt_mean(square, eps)
        new_top = cute.arch.fmax(top, score)
        old, new = cute.math.exp(top - new_top, fastmath=True), cute.math.exp(score - new_top, fastmath=True)
        inverse = cute.arch.rcp_approx(fma(old, whole, new))
        old, new = old * inverse, new * inverse
        result = tuple(fma(old, m, new * p) for m, p in zip(mix, prefix, strict=True))
        if cutlass.const_expr(self.has_norm):
            total = fma(old * old, mix_square, fma(2.0 * old * new, cross, new * new * square))
            scale = self._rsqrt_mean(total, out_eps)
            result = tuple(x * scale * g for x, g in zip(result, gain, strict=True))
        return result

    @cute.jit
    def _dot(self, a, b):
        total = Float32(0)
        for x, y in zip(a, b, strict=True):
            total = fma(x, y, total)
        return total

    @cute.jit
    def _rsqrt_mean(self, square, eps):
        return cute.math.rsqrt(fma(square, Float32(1 / self.hidden), eps), fastmath=True)

    # ---- exchange -----------------------------------------------------------------------------------------

    @cute.jit
    def _open_exchange(self, thread):
        """Allocate the rows of both exchanges and arm their barriers; the cluster may push after `cluster_wait`.

        A row is one quantity: `stage` holds it per warp of this CTA, `inbox` per CTA of the cluster.
        """
        smem = cutlass.utils.SmemAllocator()
        stage = smem.allocate_tensor(
            Float32, cute.make_layout((self.rows, self.warps_padded), stride=(self.warps_padded, 1)), 16
        )
        inbox = smem.allocate_tensor(
            Float32, cute.make_layout((self.rows, MAX_CLUSTER), stride=(MAX_CLUSTER, 1)), 16
        )
        barriers = smem.allocate_array(cutlass.Uint64, 2)
        if thread == 0:
            cute.arch.mbarrier_init(barriers, 1)
            cute.arch.mbarrier_init(barriers + 1, 1)
            cute.arch.mbarrier_init_fence()
            cute.arch.mbarrier_arrive_and_expect_tx(barriers, 4 * self.cluster * self.block_rows)
            cute.arch.mbarrier_arrive_and_expect_tx(barriers + 1, 4 * self.cluster * self.prefix_rows)
        cute.arch.cluster_arrive_relaxed()
        return stage, inbox, barriers

    @cute.jit
    def _exchange(self, values, exchange, number: cutlass.Constexpr, place):
        """Sums over the cluster of each of `values` (a power-of-two count), on every lane."""
        part, lane, warp = place
        stage, inbox, barriers = exchange
        count: cutlass.Constexpr = len(values)
        first: cutlass.Constexpr = self.block_rows if number == 1 else 0
        group: cutlass.Constexpr = WARP // count  # lanes that hold the same total
        warp_total = warp_sums(values, lane)
        if lane % group == 0:
            stage[first + lane // group, warp] = warp_total
        cute.arch.sync_threads()
        total = Float32(0)
        if lane < count:
            total = self._sum(stage.iterator + (first + lane) * self.warps_padded, self.warps)
            for step in cutlass.range_constexpr(cute.ceil_div(self.cluster, self.warps)):
                peer = warp + step * self.warps
                if peer < self.cluster:
                    push(inbox.iterator + (first + lane) * MAX_CLUSTER + part, total, barriers + number, peer)
        wait_pushes(barriers + number)
        if lane < count:
            total = self._sum(inbox.iterator + (first + lane) * MAX_CLUSTER, self.cluster)
        return [cute.arch.shuffle_sync(total, i) for i in range(count)]

    @cute.jit
    def _sum(self, row, count: cutlass.Constexpr):
        """Sum of the first `count` values of a row, always in the same order."""
        values = []
        for i in cutlass.range_constexpr(cute.ceil_div(count, 4)):
            values += load_shared4(row + 4 * i)
        total = values[0]
        for value in values[1:count]:
            total += value
        return total
