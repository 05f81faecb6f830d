"""Attention Residuals on a cluster of CTAs per token (device code).

A token's `hidden` columns are cut over the CTAs of a cluster, a few columns a thread, so all sources of the token
are read at once and stay in registers. Two exchanges through distributed shared memory join the CTAs: the score
statistics of every source, then the mean square of the mixture. Every warp pushes its partial sums to every CTA
of the cluster, and every warp adds all partial sums up for itself in one fixed order: no CTA-wide barrier, and
bits that do not depend on the batch.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

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


class AttnResCluster:
    """One launch of the operator; the constructor's arguments are compile-time.

    hidden: D. num_blocks: stored blocks among the sources. write: block that stores the new prefix, or None.
    has_delta, has_norm: whether `delta` is added and `out_norm` applied. cluster: CTAs per token.
    columns: per thread, 4 or 8; one 8- or 16-byte access per source. resident: CTAs that may share a multiprocessor.
    """

    def __init__(self, hidden, num_blocks, write, has_delta, has_norm, cluster, columns, resident):
        self.hidden, self.num_blocks, self.write = hidden, num_blocks, write
        self.has_delta, self.has_norm, self.cluster = has_delta, has_norm, cluster
        self.columns, self.words = columns, columns // 2
        self.threads = hidden // cluster // columns
        self.partials = hidden // columns // WARP  # one per warp of the cluster
        self.padded = 1 << max(num_blocks - 1, 0).bit_length()  # blocks, rounded up to a power of two
        self.rows = 2 * self.padded + 2 if num_blocks else 0  # [block dots | block squares | prefix dot, square]
        self.smem_bytes = shared_bytes(4 * (self.rows + 2) * self.partials + 64, resident)

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
        column = (part * self.threads + thread) * self.columns
        mailbox, norm_mailbox, barriers = self._open_exchange(thread)
        cute.arch.griddepcontrol_launch_dependents()
        score_weight, gain = self._weights(score_norm, score_vec, out_norm, column)
        cute.arch.griddepcontrol_wait()

        row = prefix.iterator + cutlass.Int64(token) * prefix.stride[0] + column
        block_row = blocks.iterator + cutlass.Int64(token) * blocks.stride[0] + column
        sources = [load_activation(block_row + b * blocks.stride[1], self.words) for b in range(self.num_blocks)]
        current = load_activation(row, self.words)
        if cutlass.const_expr(self.has_delta):
            step = load_activation(delta.iterator + cutlass.Int64(token) * delta.stride[0] + column, self.words)
            sums = [a + b for a, b in zip(unpack(current), unpack(step), strict=True)]
            current = pack(sums)
            store_words(row, current)
        if cutlass.const_expr(self.write is not None):
            store_words(block_row + self.write * blocks.stride[1], current)

        cute.arch.cluster_wait()
        mix = unpack(current)
        if cutlass.const_expr(self.num_blocks > 0):
            sources.append(current)
            shares = self._shares(sources, score_weight, mailbox, barriers, eps, part, thread)
            mix = self._mixture(sources, shares)
        if cutlass.const_expr(self.has_norm):
            scale = self._inverse_rms(mix, norm_mailbox, barriers, out_eps, part, thread)
            mix = [value * scale * g for value, g in zip(mix, gain, strict=True)]
        store_words(out.iterator + cutlass.Int64(token) * out.stride[0] + column, pack(mix))

    @cute.jit
    def _open_exchange(self, thread):
        """Allocate the mailboxes and arm one barrier for each; the cluster may push after `cluster_wait`."""
        smem = cutlass.utils.SmemAllocator()
        mailbox = smem.allocate_tensor(
            Float32, cute.make_layout((max(self.rows, 1), self.partials), stride=(self.partials, 1)), 16
        )
        norm_mailbox = smem.allocate_tensor(Float32, cute.make_layout(self.partials), 16)
        barriers = smem.allocate_array(cutlass.Uint64, 2)
        if thread == 0:
            cute.arch.mbarrier_init(barriers, 1)
            cute.arch.mbarrier_init(barriers + 1, 1)
            cute.arch.mbarrier_init_fence()
            pushed = 2 * (self.num_blocks + 1) if self.num_blocks else 0
            cute.arch.mbarrier_arrive_and_expect_tx(barriers, 4 * self.partials * pushed)
            cute.arch.mbarrier_arrive_and_expect_tx(barriers + 1, 4 * self.partials)
        cute.arch.cluster_arrive_relaxed()
        return mailbox, norm_mailbox, barriers

    @cute.jit
    def _weights(self, score_norm, score_vec, out_norm, column):
        """This thread's columns of the score weight and of the output gain, in FP32."""
        score_weight, gain = (), ()
        if cutlass.const_expr(self.num_blocks > 0):
            norm = unpack(load_weight(score_norm.iterator + column, self.words))
            vec = unpack(load_weight(score_vec.iterator + column, self.words))
            score_weight = tuple(a * b for a, b in zip(norm, vec, strict=True))
        if cutlass.const_expr(self.has_norm):
            gain = unpack(load_weight(out_norm.iterator + column, self.words))
        return score_weight, gain

    @cute.jit
    def _shares(self, sources, score_weight, mailbox, barriers, eps, part, thread):
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

        group = WARP // (2 * self.padded)  # lanes that hold the same block total
        is_prefix = lane % 16 == 1
        index = lane // group
        owns = (lane % group == 0) & (index % self.padded < self.num_blocks)
        if is_prefix:
            index, owns, block_sum = 2 * self.padded + lane // 16, True, prefix_sum
        sender = part * (self.threads // WARP) + warp
        place = mailbox.iterator + index * self.partials + sender
        if owns:
            for peer in cutlass.range_constexpr(self.cluster):
                push(place, block_sum, barriers, peer)
        wait_pushes(barriers)
        total = Float32(0)
        if lane < self.rows:
            total = self._add_up(mailbox.iterator + lane * self.partials)

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
        mix = [Float32(0)] * self.columns
        for source, share in zip(sources, shares, strict=True):
            mix = [fma(share, value, old) for value, old in zip(unpack(source), mix, strict=True)]
        return mix

    @cute.jit
    def _inverse_rms(self, mix, mailbox, barriers, out_eps, part, thread):
        """`1 / sqrt(mean(mix²) + out_eps)` over the cluster's columns."""
        lane, warp = thread % WARP, thread // WARP
        square = Float32(0)
        for value in mix:
            square = fma(value, value, square)
        square = warp_sum(square)
        if lane < self.cluster:
            push(mailbox.iterator + part * (self.threads // WARP) + warp, square, barriers + 1, lane)
        wait_pushes(barriers + 1)
        return self._rsqrt_mean(self._add_up(mailbox.iterator), out_eps)

    @cute.jit
    def _add_up(self, row):
        """Sum of one mailbox row, always in the same order."""
        sums = [Float32(0)] * 4
        for i in cutlass.range_constexpr(self.partials // 4):
            sums = [a + b for a, b in zip(sums, load_shared4(row + 4 * i), strict=True)]
        return (sums[0] + sums[1]) + (sums[2] + sums[3])

    @cute.jit
    def _rsqrt_mean(self, square, eps):
        return cute.math.rsqrt(fma(square, Float32(1 / self.hidden), eps), fastmath=True)
