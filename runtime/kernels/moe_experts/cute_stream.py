"""A warp's stream of MXFP4 weights: straight from memory to registers, ahead of use, across the ends of jobs.

A job is a number of steps; a step is 32 columns of one or two 64-row blocks of one expert, for eight tokens. Weights
of a step that is `depth` later are requested as soon as a step's registers are free; at the end of a job those are
the first steps of the next one. Every load of the stream is 16 bytes a lane and 512 contiguous bytes a warp.
"""

import cutlass
from cutlass import Float32, Int32, Int64, Uint32, cute

from runtime.kernels.common.launch.cute_ops import load_activation, load_int, load_weight
from runtime.kernels.moe_experts.cute_mxfp4 import BLOCK_WORDS, FRAGMENTS, GROUP, multiply

SCALE_WORDS = 16  # of a block: a byte for each of 64 rows, for 32 columns


def lane_order(column):
    """Where a column of 32 stands so that a lane's eight are together: columns 2t, 2t + 1 and 8, 16, 24 further."""
    return column % 8 // 2 * 8 + column // 8 * 2 + column % 2


class WeightStream:
    """What the kernels of both products share.

    columns: of the weight. row_blocks: blocks of 64 rows in the weight. across: how many blocks further the second
    block of a step is, or 0 where a step has one. steps: of a job. depth: steps ahead. slots: experts of a token.
    lined_up: whether the tokens' 32 columns of a step are in the order of the lanes (`lane_order`).
    """

    def __init__(self, columns, row_blocks, across, steps, depth, slots, lined_up):
        if not 1 <= depth <= steps:
            raise ValueError(f"a job of {steps} steps cannot be {depth} steps ahead")
        self.columns, self.row_blocks, self.across, self.slots = columns, row_blocks, across, slots
        self.steps, self.depth, self.lined_up = steps, depth, lined_up
        self.kinds = 2 if across else 1
        self.rows_of_groups = columns // GROUP  # scale rows of an expert

    @cute.jit
    def _wait(self):
        """Wait for the preceding kernel, then let the next one start: it may rely on all before this one."""
        cute.arch.griddepcontrol_wait()
        if cutlass.const_expr(not self.early_trigger):
            cute.arch.griddepcontrol_launch_dependents()

    @cute.jit
    def _buffers(self, place):
        """Registers for `depth` steps of (weights, scales, tokens), for the sums; `place` as in `factors`."""
        return (
            cute.make_rmem_tensor((self.depth, 8 * self.kinds), Uint32),
            cute.make_rmem_tensor((self.depth, 2 * self.kinds), Uint32),
            cute.make_rmem_tensor((self.depth, 4), Uint32),
            cute.make_rmem_tensor((FRAGMENTS * self.kinds, 4), Float32),
            place,
        )

    @cute.jit
    def _expert_row(self, experts, group, present):
        """First scale row of a group's expert in the whole tensor; of expert 0 if there is no such group."""
        expert = Int32(0)
        if present:
            expert = load_int(experts.iterator + group)
        return expert * self.rows_of_groups

    @cute.jit
    def _token(self, rows, group, present, lane):
        """The pair (token, slot) whose outputs the lane's column belongs to; without one, another of the group."""
        pair = Int32(0)
        if present:
            pair = load_int(rows.iterator + group * 8 + lane // 4)
        return pair if pair >= 0 else -1 - pair

    @cute.jit
    def _request(self, w, scales, row, block, step: cutlass.Constexpr, lane, buffers):
        """Load a step into registers; `row` is its job's first scale row, `step` counts from there."""
        weights, bytes_, _, _, _ = buffers
        d: cutlass.Constexpr = step % self.depth
        for kind in cutlass.range_constexpr(self.kinds):
            at = (row + step) * self.row_blocks + block + kind * self.across
            for half in cutlass.range_constexpr(2):
                place = (2 * (row + step) + half) * self.row_blocks + block + kind * self.across
                words = load_weight(w.iterator + Int64(place) * BLOCK_WORDS + 4 * lane)
                for j in cutlass.range_constexpr(4):
                    weights[d, 8 * kind + 4 * half + j] = words[j]
            pair = load_weight(scales.iterator + Int64(at) * SCALE_WORDS + lane // 4 * 2, 2)
            bytes_[d, 2 * kind] = pair[0]
            bytes_[d, 2 * kind + 1] = pair[1]

    @cute.jit
    def _request_tokens(self, x, at, step: cutlass.Constexpr, buffers):
        """Load the lane's words of a step's tokens: columns 2t and 2t + 8 of both halves."""
        d: cutlass.Constexpr = step % self.depth
        if cutlass.const_expr(self.lined_up):
            words = load_activation(x.iterator + at + step * GROUP, 4, cached=True)
            for j in cutlass.range_constexpr(4):
                buffers[2][d, j] = words[j]
        else:
            for j in cutlass.range_constexpr(4):
                word = load_activation(x.iterator + at + step * GROUP + 8 * j, 1, cached=True)
                buffers[2][d, j] = word[0]

    @cute.jit
    def _consume(self, step: cutlass.Constexpr, buffers):
        """Multiply a step that has arrived."""
        weights, bytes_, tokens, sums, place = buffers
        d: cutlass.Constexpr = step % self.depth
        b = [tokens[d, j] for j in range(4)]
        for kind in cutlass.range_constexpr(self.kinds):
            words = [weights[d, 8 * kind + j] for j in range(8)]
            scales = [bytes_[d, 2 * kind + j] for j in range(2)]
            multiply(words, scales, b, sums, FRAGMENTS * kind, place)

    @cute.jit
    def _job(self, w, scales, x, job, following, more, lane, buffers):
        """Multiply all steps of `job`, whose first `depth` steps are on their way, and request those of `following`.

        job, following: (first scale row, block, place of the lane's first token word). more: whether there is one.
        """
        row, block, at = job
        buffers[3].fill(0)
        looped: cutlass.Constexpr = (self.steps // self.depth - 1) * self.depth
        for start in cutlass.range(0, looped, self.depth, unroll=1):
            for d in cutlass.range_constexpr(self.depth):
                self._consume(d, buffers)
                self._request(w, scales, row + start, block, d + self.depth, lane, buffers)
                self._request_tokens(x, at + start * GROUP, d + self.depth, buffers)
        for step in cutlass.range_constexpr(looped, self.steps):
            self._consume(step, buffers)
            if cutlass.const_expr(step + self.depth < self.steps):
                self._request(w, scales, row, block, step + self.depth, lane, buffers)
                self._request_tokens(x, at, step + self.depth, buffers)
            elif more:
                d: cutlass.Constexpr = step % self.depth
                self._request(w, scales, following[0], following[1], d, lane, buffers)
                self._request_tokens(x, following[2], d, buffers)
