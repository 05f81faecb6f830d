"""Routing in Triton: the portable path. One program per token chooses, one program groups."""

import triton
import triton.language as tl

from runtime.kernels.common.launch.triton_compile import triton_image
from runtime.kernels.common.launch.triton_wait import dependency_wait
from runtime.kernels.common.workshop.audit import Limits
from runtime.kernels.common.workshop.builds import Build

WARPS = 4
GROUP_TOKENS = 8
NEVER = tl.constexpr(-2147483648)


@triton.jit
def moe_choose_kernel(
    p_logits,  # [T, E] fp32
    p_bias,  # [E] fp32
    p_padding,  # [T] uint8
    p_weights,  # [T, K] fp32
    p_ids,  # [T, K] int32
    s_logits,
    scaling,
    E: tl.constexpr,
    BE: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    MASKED: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Take the largest key K times; a key is the biased score as an integer that orders like it, NaN the largest."""
    i_t = tl.program_id(0).to(tl.int64)
    o_e, o_k = tl.arange(0, BE), tl.arange(0, BK)
    m_e = o_e < E
    b_bias = tl.load(p_bias + o_e, mask=m_e, other=0.0)
    dependency_wait(PDL)
    b_score = 1.0 / (1.0 + tl.exp(-tl.load(p_logits + i_t * s_logits + o_e, mask=m_e, other=0.0)))
    b_biased = b_score + b_bias
    b_bits = b_biased.to(tl.int32, bitcast=True)
    b_key = tl.where(b_bits < 0, b_bits ^ 0x7FFFFFFF, b_bits)
    b_key = tl.where((b_bits & 0x7FFFFFFF) > 0x7F800000, 0x7FFFFFFF, b_key)
    b_key = tl.where(m_e, b_key, NEVER)
    b_id = tl.zeros([BK], tl.int32)
    b_chosen = tl.zeros([BK], tl.float32)
    total = 0.0
    for k in tl.static_range(K):
        top = tl.max(b_key, axis=0)
        winner = tl.min(tl.where(b_key == top, o_e, BE), axis=0)
        score = tl.sum(tl.where(o_e == winner, b_score, 0.0), axis=0)
        b_id = tl.where(o_k == k, winner, b_id)
        b_chosen = tl.where(o_k == k, score, b_chosen)
        total += score
        b_key = tl.where(o_e == winner, NEVER, b_key)
    b_weight = b_chosen * scaling
    if RENORMALIZE:
        b_weight = b_weight / (total + 1e-20)
    if MASKED:
        present = tl.load(p_padding + i_t) == 0
        b_id = tl.where(present, b_id, -1)
        b_weight = tl.where(present, b_weight, 0.0)
    m_k = o_k < K
    tl.store(p_weights + i_t * K + o_k, b_weight, mask=m_k)
    tl.store(p_ids + i_t * K + o_k, b_id, mask=m_k)


@triton.jit
def moe_group_kernel(
    p_ids,  # [T, K] int32
    p_experts,  # [G] int32
    p_rows,  # [G, 8] int32
    p_count,  # [1] int32
    pairs,
    first,
    local,
    BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Place every pair by counting: pairs before it with its expert, and groups of experts before its own.

    A pair that opens a group stands for it, so that groups can be counted pair by pair too.
    """
    dependency_wait(PDL)
    o_p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    o_q = tl.arange(0, BLOCK)
    b_e = tl.load(p_ids + o_p, mask=o_p < pairs, other=-1) - first
    m_e = (o_p < pairs) & (b_e >= 0) & (b_e < local)
    b_rank = tl.zeros([BLOCK], tl.int32)
    b_size = tl.zeros([BLOCK], tl.int32)
    b_before = tl.zeros([BLOCK], tl.int32)
    groups = 0
    for start in range(0, pairs, BLOCK):
        b_other = tl.load(p_ids + start + o_q, mask=start + o_q < pairs, other=-1) - first
        m_other = (start + o_q < pairs) & (b_other >= 0) & (b_other < local)
        same = (b_other[None, :] == b_e[:, None]) & m_other[None, :]
        b_rank += tl.sum((same & (start + o_q[None, :] < o_p[:, None])).to(tl.int32), axis=1)
        b_size += tl.sum(same.to(tl.int32), axis=1)
        b_other_rank = tl.zeros([BLOCK], tl.int32)
        for again in range(0, pairs, BLOCK):
            b_third = tl.load(p_ids + again + o_q, mask=again + o_q < pairs, other=-1) - first
            earlier = (b_third[None, :] == b_other[:, None]) & (again + o_q[None, :] < start + o_q[:, None])
            b_other_rank += tl.sum(earlier.to(tl.int32), axis=1)
        m_opens = m_other & (b_other_rank % SIZE == 0)
        groups += tl.sum(m_opens.to(tl.int32), axis=0)
        b_before += tl.sum((m_opens[None, :] & (b_other[None, :] < b_e[:, None])).to(tl.int32), axis=1)
    b_group = b_before + b_rank // SIZE
    tl.store(p_experts + b_group, b_e, mask=m_e & (b_rank % SIZE == 0))
    tl.store(p_rows + b_group * SIZE + b_rank % SIZE, o_p, mask=m_e)
    m_last = m_e & (b_rank == b_size - 1)
    for i in tl.static_range(1, SIZE):
        m_free = m_last & (b_rank % SIZE + i < SIZE)
        tl.store(p_rows + b_group * SIZE + b_rank % SIZE + i, -1 - o_p, mask=m_free)
    if tl.program_id(0) == 0:
        tl.store(p_count, groups)


def run(spec, logits, bias, mask, routing, *, pdl) -> None:
    """Launch both kernels on PyTorch's current stream; mask: [T] uint8 or None."""
    tokens = logits.shape[0]
    options = {"launch_pdl": True} if pdl else {}
    moe_choose_kernel[(tokens,)](
        logits,
        bias,
        routing.count if mask is None else mask,
        routing.weights,
        routing.ids,
        logits.stride(0),
        spec.scaling,
        E=spec.experts,
        BE=triton.next_power_of_2(spec.experts),
        K=spec.top_k,
        BK=triton.next_power_of_2(spec.top_k),
        MASKED=mask is not None,
        RENORMALIZE=spec.renormalize,
        PDL=pdl,
        num_warps=WARPS,
        **options,
    )
    pairs = tokens * spec.top_k
    block = min(64, triton.next_power_of_2(pairs))
    moe_group_kernel[(triton.cdiv(pairs, block),)](
        routing.ids,
        routing.experts,
        routing.rows,
        routing.count,
        pairs,
        routing.first,
        routing.local,
        BLOCK=block,
        SIZE=GROUP_TOKENS,
        PDL=pdl,
        num_warps=WARPS,
        **options,
    )


def builds() -> list[Build]:
    """The call sites that CI compiles and audits."""
    return [_choose_build(), _group_build()]


def _choose_build() -> Build:
    types = {
        "p_logits": "*fp32",
        "p_bias": "*fp32",
        "p_padding": "*u8",
        "p_weights": "*fp32",
        "p_ids": "*i32",
        "s_logits": "i32",
        "scaling": "fp32",
    }
    constants = {"E": 896, "BE": 1024, "K": 16, "BK": 16, "MASKED": True, "RENORMALIZE": True, "PDL": True}
    roles = ("activation", "weight", "activation", "output", "output", *["scalar"] * 4)
    return _build("choose", moe_choose_kernel, types, constants, roles, 5)


def _group_build() -> Build:
    types = {"p_ids": "*i32", "p_experts": "*i32", "p_rows": "*i32", "p_count": "*i32"}
    types |= dict.fromkeys(["pairs", "first", "local"], "i32")
    constants = {"BLOCK": 64, "SIZE": GROUP_TOKENS, "PDL": True}
    roles = ("activation", "output", "output", "output", *["scalar"] * 5)
    return _build("group", moe_group_kernel, types, constants, roles, 4)


def _build(name, kernel, types, constants, roles, aligned) -> Build:
    signature = types | dict.fromkeys(constants, "constexpr")
    return Build(
        f"moe_route triton {name}",
        kernel.__name__,
        lambda target: triton_image(kernel, target, signature, constants, warps=WARPS, aligned=aligned),
        roles,
        limits=Limits(stack_bytes=512),  # the fallback may spill
    )
