"""Attention Residuals on a cluster of CTAs per token (device code).

A token's `hidden` columns are cut over the CTAs of a cluster, eight columns a thread, so all sources of the token
are read at once and stay in registers. Two exchanges through distributed shared memory join the CTAs: the score
statistics of every source, then the mean square of the mixture. A CTA first adds up its warps, because the time
of an exchange grows with the number of remote stores; then every CTA sends its sums to every CTA of the cluster,
and everyone adds them in the same order. A token's bits do not depend on the batch.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32

from runtime.kernels.common.cute_ops import (
    WARP,
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
    warp_sum,
    warp_sums,
)

COLUMNS = 8  # per thread: one 16-byte access per source
MAX_CLUSTER = 8


class AttnResCluster:
    """One launch of the operator; the constructor's arguments are compile-time.

    hidden: D. num_blocks: stored blocks among the sources. write: block that stores the new prefix, or None.
    has_delta, has_norm: whether `delta` is added and `out_norm` applied. cluster: CTAs per token.
    resident: CTAs that may share a multiprocessor.
    """

    def __init__(self, hidden, num_blocks, write, has_delta, has_norm, cluster, resident):
        self.hidden, self.num_blocks, self.write = hidden, num_blocks, write
        self.has_delta, self.has_norm, self.cluster = has_delta, has_norm, cluster
        self.threads = hidden // cluster // COLUMNS
        self.warps = self.threads // WARP
        self.padded = 1 << max(num_blocks - 1, 0).bit_length()  # blocks, rounded up to a power of two
        self.rows = 2 * self.padded + 2 if num_blocks else 0  # [block dots | block squares | prefix dot, square]
        self.warps_padded = -(-self.warps // 4) * 4
        stages = (self.rows + 1) * (self.warps_padded + MAX_CLUSTER)
        self.smem_bytes = shared_bytes(4 * stages + 128, resident)

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
        column = (part * self.threads + thread) * COLUMNS
        boxes, barriers = self._open_exchange(thread)
        cute.arch.griddepcontrol_launch_dependents()
        score_weight, gain = self._weights(score_norm, score_vec, out_norm, column)
        cute.arch.griddepcontrol_wait()

        row = prefix.iterator + cutlass.Int64(token) * prefix.stride[0] + column
        block_row = blocks.iterator + cutlass.Int64(token) * blocks.stride[0] + column
        sources = [load_activation(block_row + b * blocks.stride[1]) for b in range(self.num_blocks)]
        current = load_activation(row)
        if cutlass.const_expr(self.has_delta):
            step = load_activation(delta.iterator + cutlass.Int64(token) * delta.stride[0] + column)
            sums = [a + b for a, b in zip(unpack(current), unpack(step), strict=True)]
            current = pack(sums)
            store_words(row, current)
        if cutlass.const_expr(self.write is not None):
            store_words(block_row + self.write * blocks.stride[1], current)

        cute.arch.cluster_wait()
        mix = unpack(current)
        if cutlass.const_expr(self.num_blocks > 0):
            sources.append(current)
            shares = self._shares(sources, score_weight, boxes, barriers, eps, part, thread)
            mix = self._mixture(sources, shares)
        if cutlass.const_expr(self.has_norm):
            scale = self._inverse_rms(mix, boxes, barriers, out_eps, part, thread)
            mix = [value * scale * g for value, g in zip(mix, gain, strict=True)]
        store_words(out.iterator + cutlass.Int64(token) * out.stride[0] + column, pack(mix))

    @cute.jit
    def _open_exchange(self, thread):
        """Allocate the rows of both exchanges and arm their barriers; the cluster may push after `cluster_wait`.

        A row is one quantity: `stage` holds it per warp of this CTA, `inbox` per CTA of the cluster. The last row
        belongs to the second exchange.
        """
        smem = cutlass.utils.SmemAllocator()
        rows = self.rows + 1
        stage = smem.allocate_tensor(
            Float32, cute.make_layout((rows, self.warps_padded), stride=(self.warps_padded, 1)), 16
        )
        inbox = smem.allocate_tensor(Float32, cute.make_layout((rows, MAX_CLUSTER), stride=(MAX_CLUSTER, 1)), 16)
        barriers = smem.allocate_array(cutlass.Uint64, 2)
        if thread == 0:
            cute.arch.mbarrier_init(barriers, 1)
            cute.arch.mbarrier_init(barriers + 1, 1)
            cute.arch.mbarrier_init_fence()
            cute.arch.mbarrier_arrive_and_expect_tx(barriers, 4 * self.cluster * self.rows)
            cute.arch.mbarrier_arrive_and_expect_tx(barriers + 1, 4 * self.cluster)
        cute.arch.cluster_arrive_relaxed()
        return (stage, inbox), barriers

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

    @cute.jit
    def _shares(self, sources, score_weight, boxes, barriers, eps, part, thread):
        """Softmax shares of the sources, from their cluster-wide dot products and squares."""
        lane, warp = thread % WARP, thread // WARP
        dots, squares = [], []
        for source in sources:
            values = unpack(source)
            dot, square = Float32(0), Float32(0)
            for value, weight in zip(values, score_weight, strict=True):
                dot, square = fma(value, weight, dot), fma(value, value, square)
            dots.append(dot)
            squares.append(square)
        fill = [Float32(0)] * (self.padded - self.num_blocks)
        block_sum = warp_sums([*dots[:-1], *fill, *squares[:-1], *fill], lane)
        prefix_sum = warp_sums([dots[-1], squares[-1]], lane)

        stage, inbox = boxes
        group = WARP // (2 * self.padded)  # lanes that hold the same block total
        if lane % group == 0:
            stage[lane // group, warp] = block_sum
        if lane % 16 == 0:
            stage[2 * self.padded + lane // 16, warp] = prefix_sum
        cute.arch.sync_threads()
        total = Float32(0)
        if lane < self.rows:
            total = self._sum(stage.iterator + lane * self.warps_padded, self.warps)
            for step in cutlass.range_constexpr(cute.ceil_div(self.cluster, self.warps)):
                peer = warp + step * self.warps
                if peer < self.cluster:
                    push(inbox.iterator + lane * MAX_CLUSTER + part, total, barriers, peer)
        wait_pushes(barriers)
        if lane < self.rows:
            total = self._sum(inbox.iterator + lane * MAX_CLUSTER, self.cluster)

        scores = []
        for i in cutlass.range_constexpr(self.num_blocks + 1):
            at: cutlass.Constexpr = i if i < self.num_blocks else 2 * self.padded
            step: cutlass.Constexpr = self.padded if i < self.num_blocks else 1
            dot = cute.arch.shuffle_sync(total, at)
            square = cute.arch.shuffle_sync(total, at + step)
            scores.append(dot * self._rsqrt_mean(square, eps))
        top = scores[0]
        for score in scores[1:]:
            top = cute.arch.fmax(top, score)
        shares = [cute.math.exp(score - top, fastmath=True) for score in scores]
        whole = shares[0]
        for share in shares[1:]:
            whole += share
        inverse = cute.arch.rcp_approx(whole)
        return [share * inverse for share in shares]

    @cute.jit
    def _mixture(self, sources, shares):
        """This thread's columns of the share-weighted sum of the sources."""
        mix = [Float32(0)] * COLUMNS
        for source, share in zip(sources, shares, strict=True):
            mix = [fma(share, value, old) for value, old in zip(unpack(source), mix, strict=True)]
        return mix

    @cute.jit
    def _inverse_rms(self, mix, boxes, barriers, out_eps, part, thread):
        """`1 / sqrt(mean(mix²) + out_eps)` over the cluster's columns."""
        lane, warp = thread % WARP, thread // WARP
        stage, inbox = boxes
        square = Float32(0)
        for value in mix:
            square = fma(value, value, square)
        square = warp_sum(square)
        if lane == 0:
            stage[self.rows, warp] = square
        cute.arch.sync_threads()
        if thread < self.cluster:
            square = self._sum(stage.iterator + self.rows * self.warps_padded, self.warps)
            push(inbox.iterator + self.rows * MAX_CLUSTER + part, square, barriers + 1, thread)
        wait_pushes(barriers + 1)
        return self._rsqrt_mean(self._sum(inbox.iterator + self.rows * MAX_CLUSTER, self.cluster), out_eps)

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

    @cute.jit
    def _rsqrt_mean(self, square, eps):
        return cute.math.rsqrt(fma(square, Float32(1 / self.hidden), eps), fastmath=True)
