"""The attention core in Triton: this step's cache rows, and attention over the pages, split over the context."""

import triton
import triton.language as tl

from runtime.kernels.common.launch.triton_compile import triton_image
from runtime.kernels.common.launch.triton_wait import dependency_wait
from runtime.kernels.common.workshop.audit import Limits, Role
from runtime.kernels.common.workshop.builds import Build
from runtime.kernels.mla.shapes import KEY, LATENT, TILE

WARPS = 8
LOG2E = 1.4426950408889634


@triton.jit
def _plan(
    p_lengths, requests, span, ranks, rank, ctas, GROUPS: tl.constexpr, TILE: tl.constexpr, BB: tl.constexpr
):
    """Per request its length, rows held here, tiles of a pair and the end of its tiles; and the run of a CTA."""
    o_b = tl.arange(0, BB)
    b_length = tl.load(p_lengths + o_b, mask=o_b < requests, other=0)
    b_held = (b_length - rank + ranks - 1) // ranks
    b_tiles = (b_held + TILE - 1) // TILE
    b_end = tl.cumsum(b_tiles * GROUPS, 0)
    total = tl.sum(b_tiles * GROUPS, 0)
    run = tl.maximum(span, (total + ctas - 1) // ctas)
    return o_b, b_length, b_held, b_tiles, b_end, total, run


@triton.jit
def _of(b_values, o_b, b):
    """The value of request `b`."""
    return tl.sum(tl.where(o_b == b, b_values, 0), 0)


@triton.jit
def _normed(p_kv, o_row, m_row, p_norm, o_l, eps, L: tl.constexpr):
    """The normed latents [rows, L] of new rows, in FP32."""
    b_kv = tl.load(p_kv + o_row[:, None] + o_l[None, :], mask=m_row[:, None], other=0.0).to(tl.float32)
    b_scale = tl.rsqrt(tl.sum(b_kv * b_kv, 1) / L + eps)
    return b_kv * b_scale[:, None] * tl.load(p_norm + o_l).to(tl.float32)[None, :]


@triton.jit
def _tile_rows(
    p_kv, p_norm, p_cache, p_table, p_slots, s_kv, s_page, s_cache_row, s_table, b, i, length, held,
    ranks, rank, eps, group, o_n, o_l, o_k,
    TOKENS: tl.constexpr, BLOCK: tl.constexpr, L: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """A tile's latents and shared keys, and which rows are there; rows of this step are normed and stored."""
    b_j = i * TILE + o_n
    b_position = b_j * ranks + rank
    b_token = b_position - (length - TOKENS)
    m_new = (b_j < held) & (b_token >= 0)
    b_page = tl.load(p_table + b * s_table + b_j // BLOCK, mask=b_j < held, other=-1)
    m_old = (b_page >= 0) & (b_j < held) & (b_token < 0)
    p_old = p_cache + (b_page.to(tl.int64) * s_page + (b_j % BLOCK) * s_cache_row)[:, None]
    b_c = tl.load(p_old + o_l[None, :], mask=m_old[:, None], other=0.0)
    b_s = tl.load(p_old + L + o_k[None, :], mask=m_old[:, None], other=0.0)
    if (i * TILE + TILE - 1) * ranks + rank >= length - TOKENS:
        b_from = b * TOKENS + tl.where(m_new, b_token, 0)
        o_new = b_from.to(tl.int64) * s_kv
        b_new = _normed(p_kv, o_new, m_new, p_norm, o_l, eps, L).to(p_cache.dtype.element_ty)
        b_key = tl.load(p_kv + o_new[:, None] + L + o_k[None, :], mask=m_new[:, None], other=0.0)
        b_c = tl.where(m_new[:, None], b_new, b_c)
        b_s = tl.where(m_new[:, None], b_key, b_s)
        b_slot = tl.load(p_slots + b_from, mask=m_new, other=-1).to(tl.int64)
        m_store = (b_slot + tl.where(group == 0, 0, -(1 << 62)) >= 0)[:, None]
        b_slot = tl.where(b_slot < 0, 0, b_slot)
        p_new = p_cache + (b_slot // BLOCK * s_page + b_slot % BLOCK * s_cache_row)[:, None]
        tl.store(p_new + o_l[None, :], b_c, mask=m_store)
        tl.store(p_new + L + o_k[None, :], b_s, mask=m_store)
    return b_c, b_s, m_old | m_new


@triton.jit
def mla_core_kernel(
    p_query,  # [T, N, L + KEY]
    p_kv,  # [T, L | KEY], columns of the projection
    p_norm,  # [L]
    p_cache,  # [pages, BLOCK, L + KEY]
    p_table,  # [B, W] int32
    p_lengths,  # [B] int32
    p_slots,  # [T] int64
    p_o,  # [places, ROWS, L] fp32
    p_lse,  # [places, ROWS] fp32, natural
    s_kv,
    s_page,
    s_cache_row,
    s_table,
    requests,
    span,
    ranks,
    rank,
    eps,
    scale,  # times log2(e)
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    L: tl.constexpr,
    KEY: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    TILE: tl.constexpr,
    BB: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: an equal run of all tiles of the step, see `shapes`."""
    i_c, ctas = tl.program_id(0), tl.num_programs(0)
    o_b, b_length, b_held, b_tiles, b_end, total, run = _plan(
        p_lengths, requests, span, ranks, rank, ctas, GROUPS, TILE, BB
    )
    dependency_wait(PDL)
    o_r, o_n, o_l, o_k = tl.arange(0, ROWS), tl.arange(0, TILE), tl.arange(0, L), tl.arange(0, KEY)
    dtype = p_cache.dtype.element_ty
    t = i_c * run
    stop = tl.minimum(t + run, total)
    while t < stop:
        b = tl.sum((b_end <= t).to(tl.int32), 0)
        length, held, tiles = _of(b_length, o_b, b), _of(b_held, o_b, b), _of(b_tiles, o_b, b)
        begin = t - (_of(b_end, o_b, b) - tiles * GROUPS)
        group = begin // tiles
        first = begin - group * tiles
        last = tl.minimum(tiles, first + stop - t)
        b_row = group * ROWS + o_r
        m_row = b_row < HEADS * TOKENS
        p_row = p_query + ((b * TOKENS * HEADS + b_row) * (L + KEY)).to(tl.int64)[:, None]
        b_q = tl.load(p_row + o_l[None, :], mask=m_row[:, None], other=0.0)
        b_qs = tl.load(p_row + L + o_k[None, :], mask=m_row[:, None], other=0.0)
        b_limit = length - TOKENS + b_row // HEADS
        b_top = tl.full([ROWS], -float("inf"), tl.float32)
        b_sum = tl.zeros([ROWS], tl.float32)
        b_o = tl.zeros([ROWS, L], tl.float32)
        for i in range(first, last):
            b_position = (i * TILE + o_n) * ranks + rank
            b_c, b_s, m_there = _tile_rows(
                p_kv, p_norm, p_cache, p_table, p_slots, s_kv, s_page, s_cache_row, s_table, b, i, length, held,
                ranks, rank, eps, group, o_n, o_l, o_k, TOKENS, BLOCK, L, TILE,
            )  # fmt: skip
            b_score = (tl.dot(b_q, tl.trans(b_c)) + tl.dot(b_qs, tl.trans(b_s))) * scale
            m_seen = m_there[None, :] & (b_position[None, :] <= b_limit[:, None])
            b_score = tl.where(m_seen, b_score, -float("inf"))
            b_new_top = tl.maximum(b_top, tl.max(b_score, 1))
            b_base = tl.where(b_new_top == -float("inf"), 0.0, b_new_top)
            b_p = tl.exp2(b_score - b_base[:, None])
            b_shrink = tl.exp2(b_top - b_base)
            b_sum = b_sum * b_shrink + tl.sum(b_p, 1)
            b_o = b_o * b_shrink[:, None] + tl.dot(b_p.to(dtype), b_c)
            b_top = b_new_top
        place = (i_c + b * GROUPS + group).to(tl.int64) * ROWS
        b_inverse = tl.where(b_sum == 0.0, 0.0, 1.0 / tl.where(b_sum == 0.0, 1.0, b_sum))
        tl.store(p_o + (place + o_r)[:, None] * L + o_l[None, :], b_o * b_inverse[:, None])
        b_lse = tl.where(b_sum == 0.0, -float("inf"), (b_top + tl.log2(b_sum)) * 0.6931471805599453)
        tl.store(p_lse + place + o_r, b_lse)
        t += last - first


def run(spec, split, query, kv_a, norm, cache, block_table, lengths, slots, o, lse, *, pdl) -> None:
    """Launch on PyTorch's current stream; shapes in `composed.mla_core`, o and lse in places (`shapes`)."""
    options = {"launch_pdl": True} if pdl else {}
    latent = norm.shape[0]
    mla_core_kernel[(split.ctas,)](
        query,
        kv_a,
        norm,
        cache,
        block_table,
        lengths,
        slots,
        o,
        lse,
        kv_a.stride(0),
        cache.stride(0),
        cache.stride(1),
        block_table.stride(0),
        lengths.shape[0],
        split.span,
        spec.ranks,
        spec.rank,
        spec.eps,
        spec.scale * LOG2E,
        HEADS=query.shape[1],
        TOKENS=spec.tokens,
        BLOCK=cache.shape[1],
        L=latent,
        KEY=query.shape[2] - latent,
        ROWS=split.rows,
        GROUPS=split.groups,
        TILE=TILE,
        BB=triton.next_power_of_2(lengths.shape[0]),
        PDL=pdl,
        num_warps=WARPS,
        **options,
    )


_TYPES = {
    "p_query": "*bf16",
    "p_kv": "*bf16",
    "p_norm": "*bf16",
    "p_cache": "*bf16",
    "p_table": "*i32",
    "p_lengths": "*i32",
    "p_slots": "*i64",
    "p_o": "*fp32",
    "p_lse": "*fp32",
}
_NUMBERS = ("s_kv", "s_page", "s_cache_row", "s_table", "requests", "span", "ranks", "rank")


def builds() -> list[Build]:
    """The head counts and query lengths that CI compiles and audits."""
    return [_build(12, 1, 16, 1), _build(6, 4, 32, 1), _build(96, 1, 32, 3)]


def _build(heads, tokens, rows, groups) -> Build:
    sizes = {"HEADS": heads, "TOKENS": tokens, "BLOCK": 768, "L": LATENT, "KEY": KEY, "ROWS": rows}
    constants = sizes | {"GROUPS": groups, "TILE": TILE, "BB": 64, "PDL": True}
    signature = _TYPES | dict.fromkeys(_NUMBERS, "i32") | dict.fromkeys(("eps", "scale"), "fp32")
    signature |= dict.fromkeys(constants, "constexpr")
    tensors: list[Role] = ["activation", "activation", "weight", "state"]
    tensors += ["table", "table", "table", "output", "output"]
    scalars: list[Role] = ["scalar"] * (len(_NUMBERS) + 4)
    return Build(
        f"mla core triton heads={heads} tokens={tokens}",
        mla_core_kernel.__name__,
        lambda target: triton_image(
            mla_core_kernel, target, signature, constants, warps=WARPS, aligned=len(_TYPES)
        ),
        (*tensors, *scalars),
        limits=Limits(stack_bytes=2048),  # the fallback may spill
    )
