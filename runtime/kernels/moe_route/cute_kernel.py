"""Routing of a decode step in one launch: scores, the chosen experts, their weights, and the groups (device code).

Four warps share a token, a quarter of the experts each. A choice is a 32-bit key, the biased score as an unsigned
number that orders like it; equal keys go to the lower expert. Every lane's best key is ranked within its warp; the
smallest of the first `top_k / 4` of each warp is a bound below which nothing can be chosen. What reaches it, some
twenty of 896 experts, is ranked by counting, a thread each; if many are equal, more reach it and the same code takes
longer. Nothing here depends on other tokens, and the order in which candidates are noted does not show.

A CTA has up to eight tokens, a cluster up to 64. Every choice sets the token's bit in its expert's byte. The CTAs
of a cluster send each other all their bytes, so each knows who chose whom, counts the groups before every expert by
a scan, and writes what belongs to its own tokens. The order within a group is that of the tokens.
"""

import cutlass
from cutlass import Float32, Int32, Uint32, cute

from runtime.kernels.common.launch.cute_ops import (
    WARP,
    as_bits,
    as_float,
    count_shared,
    load_byte,
    load_float,
    load_shared_pair,
    load_shared_word,
    load_shared_words,
    mark_shared,
    push,
    shared_bytes,
    store_floats,
    store_shared_pair,
    store_shared_word,
    store_words,
    wait_pushes,
    warp_min,
    warp_sum,
)

QUARTERS = 4  # warps of a token
CTA_TOKENS = 8
THREADS = CTA_TOKENS * QUARTERS * WARP
GROUP_TOKENS = 8
NOBODY = 0xFFFFFFFF  # larger than any expert


class MoeRouteCluster:
    """One launch; the constructor's arguments are compile-time.

    experts: E, at most 1024. top_k: at most 32. cluster: CTAs, each with eight tokens. masked: whether `padding` is
    given. renormalize, scaling: of the weights. early_trigger: see `Overlap`.
    """

    def __init__(self, experts, top_k, cluster, masked, renormalize=True, scaling=1.0, early_trigger=False):
        self.experts, self.top_k, self.cluster, self.masked = experts, top_k, cluster, masked
        self.renormalize, self.scaling, self.early_trigger = renormalize, scaling, early_trigger
        self.quarter = -(-experts // (QUARTERS * WARP)) * WARP  # experts of a warp
        self.held = self.quarter // WARP  # of a lane
        self.each = -(-top_k // QUARTERS)  # lanes of a quarter that bound the choice
        self.bytes_words = -(-experts // 4)  # a byte for every expert: which of a CTA's tokens chose it
        words = self.bytes_words * (1 + cluster) + 3 * experts + THREADS + THREADS // WARP * 2
        words += CTA_TOKENS * (2 * experts + WARP + 1)
        self.smem_bytes = shared_bytes(4 * words + 512, 1)

    @cute.jit
    def __call__(
        self,
        logits,
        bias,
        padding,
        topk_weights,
        topk_ids,
        group_experts,
        group_rows,
        group_count,
        first,
        local,
        stream,
    ):
        """logits [T, E] FP32, bias [E] FP32, padding [T] bytes; the rest is written, see `spec`."""
        self.kernel(
            logits,
            bias,
            padding,
            topk_weights,
            topk_ids,
            group_experts,
            group_rows,
            group_count,
            first,
            local,
        ).launch(
            grid=(self.cluster, 1, 1),
            block=(THREADS, 1, 1),
            cluster=(self.cluster, 1, 1),
            smem=self.smem_bytes,
            stream=stream,
            use_pdl=True,
        )

    @cute.kernel
    def kernel(
        self,
        logits: cute.Tensor,
        bias: cute.Tensor,
        padding: cute.Tensor,
        topk_weights: cute.Tensor,
        topk_ids: cute.Tensor,
        group_experts: cute.Tensor,
        group_rows: cute.Tensor,
        group_count: cute.Tensor,
        first: Int32,
        local: Int32,
    ):
        part, _, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        lane, warp = thread % WARP, cute.arch.make_warp_uniform(thread // WARP)
        mine, quarter = warp // QUARTERS, warp % QUARTERS
        token = part * CTA_TOKENS + mine
        smem = cutlass.utils.SmemAllocator()
        own = self._words(smem, self.bytes_words)
        inbox = self._words(smem, self.bytes_words * self.cluster)  # [CTA][byte of each expert]
        masks = self._words(smem, 2 * self.experts)  # low words of all experts, then high words
        before = self._words(smem, self.experts)  # groups before each expert
        tops = self._words(smem, THREADS)  # each lane's largest key
        bounds = self._words(smem, THREADS // WARP)
        noted = self._words(smem, CTA_TOKENS)  # candidates of each token
        candidates = self._words(smem, CTA_TOKENS * 2 * self.experts)  # (key, expert)
        winners = self._words(smem, CTA_TOKENS * WARP)  # experts by rank
        totals = self._words(smem, THREADS // WARP)
        full = smem.allocate_tensor(cutlass.Uint64, cute.make_layout(1), 8).iterator

        if cutlass.const_expr(self.early_trigger):
            cute.arch.griddepcontrol_launch_dependents()
        if thread < self.bytes_words:
            store_shared_word(own + thread, Uint32(0))
        if thread < CTA_TOKENS:
            store_shared_word(noted + thread, Uint32(0))
        if cutlass.const_expr(self.cluster > 1):
            if thread == 0:
                cute.arch.mbarrier_init(full, 1)
                cute.arch.mbarrier_arrive_and_expect_tx(full, 4 * self.bytes_words * self.cluster)
                cute.arch.mbarrier_init_fence()
            cute.arch.cluster_arrive_relaxed()
        biases = [self._bias(bias, quarter * self.quarter + i * WARP + lane) for i in range(self.held)]
        cute.arch.griddepcontrol_wait()
        if cutlass.const_expr(not self.early_trigger):
            cute.arch.griddepcontrol_launch_dependents()

        present = token < logits.shape[0]
        if cutlass.const_expr(self.masked):
            if present:
                present = load_byte(padding.iterator + token) == 0
        row = logits.iterator + (token if token < logits.shape[0] else Int32(0)) * logits.stride[0]
        held = cute.make_rmem_tensor((self.held,), Uint32)
        if present:
            for i in cutlass.range_constexpr(self.held):
                expert = quarter * self.quarter + i * WARP + lane
                held[i] = Uint32(0)
                if expert < self.experts:
                    held[i] = self._key(self._score(load_float(row + expert)) + biases[i])
            self._bound(held, tops, bounds, lane, warp)
        cute.arch.sync_threads()
        found = candidates + mine * (2 * self.experts)
        if present:
            self._note(held, bounds + mine * QUARTERS, noted + mine, found, quarter, lane)
        cute.arch.sync_threads()
        if present:
            self._rank(noted + mine, found, winners + mine * WARP, quarter * WARP + lane)
        cute.arch.sync_threads()

        expert, chosen = Int32(0), (quarter == 0) & (lane < self.top_k)
        if quarter == 0:
            if chosen & present:
                expert = Int32(load_shared_word(winners + mine * WARP + lane))
            score = Float32(0)
            if chosen & present:
                score = self._score(load_float(row + expert))
            total = warp_sum(score)
            weight = score * self.scaling
            if cutlass.const_expr(self.renormalize):
                weight = weight / (total + Float32(1e-20))
            if chosen & (token < logits.shape[0]):
                out = token * self.top_k + lane
                store_floats(topk_weights.iterator + out, (weight if present else Float32(0),))
                store_words(topk_ids.iterator + out, (Uint32(expert) if present else Uint32(NOBODY),))
        chosen = chosen & present & (expert >= first) & (expert < first + local)
        if chosen:
            mark_shared(own + expert // 4, Uint32(1) << Uint32(expert % 4 * 8 + mine))
        cute.arch.sync_threads()
        if cutlass.const_expr(self.cluster > 1):
            cute.arch.cluster_wait()
            self._exchange(own, inbox, full, part, thread)
            wait_pushes(full)
            self._gather(inbox, masks, thread)
        else:
            self._gather(own, masks, thread)
        self._scan(masks, before, totals, group_count, part, lane, warp, thread)
        cute.arch.sync_threads()
        if chosen:
            self._write(masks, before, group_experts, group_rows, token, lane, expert, first)

    @cute.jit
    def _words(self, smem, count: cutlass.Constexpr):
        return smem.allocate_tensor(Int32, cute.make_layout(count), 16).iterator

    # ---- choosing ----------------------------------------------------------------------------------------

    @cute.jit
    def _bias(self, bias, expert):
        value = Float32(0)
        if expert < self.experts:
            value = load_float(bias.iterator + expert)
        return value

    @cute.jit
    def _score(self, logit):
        """Sigmoid with the exact division and exponential: choices must not depend on approximations."""
        return Float32(1) / (Float32(1) + cute.math.exp(-logit))

    @cute.jit
    def _key(self, value):
        """An unsigned number above 0 that orders like `value`; NaN is the largest, as in PyTorch's sort."""
        bits = as_bits(value)
        ordered = (bits ^ Uint32(0xFFFFFFFF)) if bits >= Uint32(0x80000000) else (bits | Uint32(0x80000000))
        nan = (bits & Uint32(0x7FFFFFFF)) > Uint32(0x7F800000)
        return Uint32(0xFFFFFFFF) if nan else ordered

    @cute.jit
    def _bound(self, held, tops, bounds, lane, warp):
        """Note the key that at least `each` lanes of this warp reach.

        A lane's rank counts the larger ones only, so at least `each` lanes rank below `each`.
        """
        top = held[0]
        for i in cutlass.range_constexpr(1, self.held):
            top = held[i] if held[i] > top else top
        mine = tops + warp * WARP
        store_shared_word(mine + lane, top)
        cute.arch.sync_warp()
        rank = Int32(0)
        for start in cutlass.range_constexpr(0, WARP, 4):
            for other in load_shared_words(mine + start):
                rank += Int32(1) if other > top else Int32(0)
        bound = warp_min(top if rank < self.each else Uint32(NOBODY))
        if lane == 0:
            store_shared_word(bounds + warp, bound)

    @cute.jit
    def _note(self, held, bounds, noted, found, quarter, lane):
        """Enter every expert whose key reaches the bounds of all four warps; nobody's key is 0."""
        bound = Uint32(NOBODY)
        for other in load_shared_words(bounds):
            bound = other if other < bound else bound
        for i in cutlass.range_constexpr(self.held):
            if (held[i] >= bound) & (held[i] > Uint32(0)):
                place = Int32(count_shared(noted))
                expert = quarter * self.quarter + i * WARP + lane
                store_shared_pair(found + 2 * place, (held[i], Uint32(expert)))

    @cute.jit
    def _rank(self, noted, found, winners, thread):
        """Count who comes before each candidate; the first `top_k` enter their expert by rank."""
        count = Int32(load_shared_word(noted))
        at = thread
        while at < count:
            key, expert = load_shared_pair(found + 2 * at)
            rank = Int32(0)
            for i in cutlass.range(count, unroll=4):
                other, name = load_shared_pair(found + 2 * i)
                before = (other > key) | ((other == key) & (name < expert))
                rank += Int32(1) if before else Int32(0)
            if rank < self.top_k:
                store_shared_word(winners + rank, expert)
            at += QUARTERS * WARP

    # ---- grouping ----------------------------------------------------------------------------------------

    @cute.jit
    def _exchange(self, own, inbox, barrier, part, thread):
        """Send this CTA's bytes to every CTA of the cluster."""
        for start in cutlass.range_constexpr(0, self.bytes_words * self.cluster, THREADS):
            at = start + thread
            if at < self.bytes_words * self.cluster:
                peer, word = at // self.bytes_words, at % self.bytes_words
                value = as_float(load_shared_word(own + word))
                push(inbox + part * self.bytes_words + word, value, barrier, peer)

    @cute.jit
    def _gather(self, inbox, masks, thread):
        """Put the 64 bits of each expert's tokens together."""
        if thread < self.experts:
            halves = [Uint32(0), Uint32(0)]
            for peer in cutlass.range_constexpr(self.cluster):
                word = load_shared_word(inbox + peer * self.bytes_words + thread // 4)
                byte = (word >> Uint32(thread % 4 * 8)) & Uint32(0xFF)
                halves[peer // 4] = halves[peer // 4] | (byte << Uint32(peer % 4 * 8))
            store_shared_word(masks + thread, halves[0])
            store_shared_word(masks + self.experts + thread, halves[1])

    @cute.jit
    def _tokens_of(self, masks, expert):
        """The 64 bits of an expert's tokens."""
        return load_shared_word(masks + expert), load_shared_word(masks + self.experts + expert)

    @cute.jit
    def _scan(self, masks, before, totals, group_count, part, lane, warp, thread):
        """Write the number of groups before each expert to `before`, and their total to memory.

        A thread reads the masks that it has just written itself.
        """
        groups = Int32(0)
        if thread < self.experts:
            low, high = self._tokens_of(masks, thread)
            groups = (_ones(low) + _ones(high) + (GROUP_TOKENS - 1)) // GROUP_TOKENS
        upto = self._inclusive(groups, lane)
        if lane == WARP - 1:
            store_shared_word(totals + warp, Uint32(upto))
        cute.arch.sync_threads()
        whole = Int32(load_shared_word(totals + lane))  # a CTA has 32 warps
        whole = self._inclusive(whole, lane)
        offset = cute.arch.shuffle_sync(whole, (warp - 1) if warp > 0 else Int32(0))
        offset = offset if warp > 0 else Int32(0)
        if thread < self.experts:
            store_shared_word(before + thread, Uint32(offset + upto - groups))
        if (part == 0) & (thread == THREADS - 1):
            store_words(group_count.iterator, (Uint32(whole),))

    @cute.jit
    def _inclusive(self, value, lane):
        """Sum over this lane and all lower ones."""
        for step in cutlass.range_constexpr(5):
            below = cute.arch.shuffle_sync_up(value, 1 << step, mask_and_clamp=0)
            value = value + (below if lane >= (1 << step) else Int32(0))
        return value

    @cute.jit
    def _write(self, masks, before, group_experts, group_rows, token, lane, expert, first):
        """Enter the pair (token, slot) into its group; the last pair of a group fills what is left of it."""
        low, high = self._tokens_of(masks, expert)
        below = (Uint32(1) << Uint32(token % 32)) - Uint32(1)
        low_below = below if token < 32 else Uint32(0xFFFFFFFF)
        high_below = below if token >= 32 else Uint32(0)
        rank = _ones(low & low_below) + _ones(high & high_below)
        count = _ones(low) + _ones(high)
        group = Int32(load_shared_word(before + expert)) + rank // GROUP_TOKENS
        pair = token * self.top_k + lane
        place = group_rows.iterator + group * GROUP_TOKENS + rank % GROUP_TOKENS
        store_words(place, (Uint32(pair),))
        if rank % GROUP_TOKENS == 0:
            store_words(group_experts.iterator + group, (Uint32(expert - first),))
        if rank == count - 1:
            for i in cutlass.range_constexpr(1, GROUP_TOKENS):
                if rank % GROUP_TOKENS + i < GROUP_TOKENS:
                    store_words(place + i, (Uint32(-1 - pair),))


def _ones(word):
    """Bits that are set."""
    return Int32(cute.arch.popc(word))
