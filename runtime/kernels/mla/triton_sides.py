"""The projections around the attention core in Triton: the query's two, and the value's with the merge of parts."""

import triton
import triton.language as tl

from runtime.kernels.common.launch.triton_compile import triton_image
from runtime.kernels.common.launch.triton_wait import dependency_wait
from runtime.kernels.common.workshop.audit import Limits, Role
from runtime.kernels.common.workshop.builds import Build
from runtime.kernels.mla.shapes import HEAD, KEY, LATENT, NOPE, TILE, VALUE
from runtime.kernels.mla.triton_core import _plan

WARPS = 4
TOKENS_AT_ONCE = 16


@triton.jit
def mla_query_kernel(
    p_x,  # [T, R]
    p_norm,  # [R]
    p_w,  # [Q, R]
    p_q,  # [T, Q]
    s_x,
    rows,
    eps,
    R: tl.constexpr,
    Q: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    BT: tl.constexpr,
    LINES: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: BN columns of BT queries. The norm is applied, and rounded, by every program for itself."""
    o_n, o_t, o_k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BT), tl.arange(0, BK)
    b_row = tl.program_id(1) * BT + o_t
    m_row = (b_row < rows)[:, None]
    p_row = p_x + (tl.where(b_row < rows, b_row, 0).to(tl.int64) * s_x)[:, None]
    p_weight = p_w + (o_n * R)[None, :]
    if PDL:  # the weights come to the L2 cache while the kernel before still runs
        o_line = tl.minimum(tl.arange(0, LINES), R // 64 - 1) * 64
        p_line = p_w + (tl.minimum(o_n, Q - 1) * R)[:, None] + o_line[None, :]
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [p_line.to(tl.int64)],
            tl.int32,
            is_pure=False,
            pack=1,
        )
    dependency_wait(PDL)
    b_square = tl.zeros([BT], tl.float32)
    for start in range(0, R, BK):
        b_x = tl.load(p_row + (start + o_k)[None, :], mask=m_row, other=0.0).to(tl.float32)
        b_square += tl.sum(b_x * b_x, 1)
    b_scale = tl.rsqrt(b_square / R + eps)
    b_sum = tl.zeros([BT, BN], tl.float32)
    for start in range(0, R, BK):
        b_x = tl.load(p_row + (start + o_k)[None, :], mask=m_row, other=0.0).to(tl.float32)
        b_x = b_x * b_scale[:, None] * tl.load(p_norm + start + o_k).to(tl.float32)[None, :]
        b_w = tl.load(p_weight + (start + o_k)[:, None], mask=(o_n < Q)[None, :], other=0.0)
        b_sum += tl.dot(b_x.to(p_x.dtype.element_ty), b_w)  # rounding point
    p_out = p_q + b_row.to(tl.int64)[:, None] * Q + o_n[None, :]
    tl.store(p_out, b_sum.to(p_q.dtype.element_ty), mask=m_row & (o_n < Q)[None, :])


@triton.jit
def mla_absorb_kernel(
    p_q,  # [T, N, DN + KEY]
    p_w,  # [N, DN, L], heads s_head apart
    p_query,  # [T, N, L + KEY]
    rows,
    s_head,
    N: tl.constexpr,
    DN: tl.constexpr,
    KEY: tl.constexpr,
    L: tl.constexpr,
    BL: tl.constexpr,
    BT: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: BL columns of a head's absorbed query; the first of a head also carries the shared-key columns."""
    i_h, i_l = tl.program_id(0), tl.program_id(1)
    o_d, o_l, o_k = tl.arange(0, DN), i_l * BL + tl.arange(0, BL), tl.arange(0, KEY)
    b_w = tl.load(p_w + i_h.to(tl.int64) * s_head + o_d[:, None] * L + o_l[None, :])
    dependency_wait(PDL)
    b_row = tl.program_id(2) * BT + tl.arange(0, BT)
    m_row = (b_row < rows)[:, None]
    b_head = (b_row.to(tl.int64) * N + i_h)[:, None]
    p_from, p_to = p_q + b_head * (DN + KEY), p_query + b_head * (L + KEY)
    b_q = tl.load(p_from + o_d[None, :], mask=m_row, other=0.0)
    tl.store(p_to + o_l[None, :], tl.dot(b_q, b_w).to(p_query.dtype.element_ty), mask=m_row)
    if i_l == 0:
        b_key = tl.load(p_from + DN + o_k[None, :], mask=m_row, other=0.0)
        tl.store(p_to + L + o_k[None, :], b_key, mask=m_row)


@triton.jit
def _places(
    p_lengths, requests, span, ranks, rank, ctas, b_token, i_h,
    N: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, TILE: tl.constexpr,
    BB: tl.constexpr,
):  # fmt: skip
    """For tokens b_token and a head: the row of their first part, and how many parts they have."""
    o_b, _, _, b_tiles, b_end, _, run = _plan(p_lengths, requests, span, ranks, rank, ctas, GROUPS, TILE, BB)
    m_request = o_b[None, :] == (b_token // TOKENS)[:, None]
    tiles = tl.sum(tl.where(m_request, b_tiles[None, :], 0), 1)
    end = tl.sum(tl.where(m_request, b_end[None, :], 0), 1)
    row = b_token % TOKENS * N + i_h
    group = row // ROWS
    start = end - tiles * (GROUPS - group)
    first, last = start // run, (start + tiles - 1) // run
    place = first + b_token // TOKENS * GROUPS + group
    return place.to(tl.int64) * ROWS + row % ROWS, tl.where(tiles > 0, last - first + 1, 0)


@triton.jit
def _merged(p_o, p_lse, b_first, b_count, step, o_l, L: tl.constexpr, BT: tl.constexpr):
    """The parts of BT rows merged in order: o [BT, L] and natural lse [BT]; zeros and -inf where there is none."""
    b_top = tl.full([BT], -float("inf"), tl.float32)
    for part in range(tl.max(b_count, 0)):
        b_lse = tl.load(p_lse + b_first + part * step, mask=part < b_count, other=-float("inf"))
        b_top = tl.maximum(b_top, b_lse)
    b_base = tl.where(b_top == -float("inf"), 0.0, b_top)
    b_total = tl.zeros([BT], tl.float32)
    b_o = tl.zeros([BT, L], tl.float32)
    for part in range(tl.max(b_count, 0)):
        b_at = b_first + part * step
        b_lse = tl.load(p_lse + b_at, mask=part < b_count, other=-float("inf"))
        b_weight = tl.exp(b_lse - b_base)
        m_part = (b_lse != -float("inf"))[:, None]
        b_part = tl.load(p_o + b_at[:, None] * L + o_l[None, :], mask=m_part, other=0.0).to(tl.float32)
        b_total += b_weight
        b_o += b_weight[:, None] * tl.where((b_weight == 0.0)[:, None], 0.0, b_part)
    m_none = b_total == 0.0
    b_o = tl.where(m_none[:, None], 0.0, b_o / tl.where(m_none, 1.0, b_total)[:, None])
    return b_o, tl.where(m_none, -float("inf"), b_base + tl.log(tl.where(m_none, 1.0, b_total)))


@triton.jit
def mla_value_kernel(
    p_o,  # [places, ROWS, L] or [P, T, N, L], fp32
    p_lse,  # the same without L
    p_lengths,  # [B] int32
    p_w,  # [N, V, L], heads s_head apart
    p_gate,  # [T, N V]
    p_out,  # [T, N V]
    s_head,
    s_gate,
    s_out,
    rows,
    requests,
    span,
    ranks,
    rank,
    ctas,
    N: tl.constexpr,
    TOKENS: tl.constexpr,
    V: tl.constexpr,
    L: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    SHARDS: tl.constexpr,
    TILE: tl.constexpr,
    BB: tl.constexpr,
    BV: tl.constexpr,
    BT: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: BV gated value columns of a head, for BT tokens. SHARDS: parts of every row; 0: a core's."""
    i_h = tl.program_id(0)
    o_v, o_l = tl.program_id(1) * BV + tl.arange(0, BV), tl.arange(0, L)
    b_w = tl.load(p_w + i_h.to(tl.int64) * s_head + o_v[None, :] * L + o_l[:, None])  # [L, BV]
    b_row = tl.program_id(2) * BT + tl.arange(0, BT)
    m_row = b_row < rows
    if SHARDS > 0:
        step = rows * N
        b_first, b_count = b_row.to(tl.int64) * N + i_h, tl.where(m_row, SHARDS, 0)
    else:
        step = ROWS
        b_first, b_count = _places(
            p_lengths, requests, span, ranks, rank, ctas, b_row, i_h, N, TOKENS, ROWS, GROUPS, TILE, BB
        )
    dependency_wait(PDL)
    b_o, _ = _merged(p_o, p_lse, b_first, b_count, step, o_l, L, BT)
    dtype = p_w.dtype.element_ty
    b_value = tl.dot(b_o.to(dtype), b_w).to(dtype).to(tl.float32)  # rounding points
    o_column = i_h * V + o_v
    m_out = m_row[:, None] & (o_column >= 0)[None, :]
    p_gates = p_gate + b_row.to(tl.int64)[:, None] * s_gate + o_column[None, :]
    b_gate = tl.load(p_gates, mask=m_out, other=0.0).to(tl.float32)
    p_to = p_out + b_row.to(tl.int64)[:, None] * s_out + o_column[None, :]
    tl.store(p_to, (b_value * tl.sigmoid(b_gate)).to(p_out.dtype.element_ty), mask=m_out)


@triton.jit
def mla_merge_kernel(
    p_parts,  # [places, ROWS, L] fp32
    p_part_lse,  # [places, ROWS] fp32
    p_lengths,  # [B] int32
    p_o,  # [T, N, L] fp32
    p_lse,  # [T, N] fp32
    requests,
    span,
    ranks,
    rank,
    ctas,
    N: tl.constexpr,
    TOKENS: tl.constexpr,
    L: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    TILE: tl.constexpr,
    BB: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: a token and head of a rank's shard, for the exchange of decode context parallelism."""
    i_t, i_h, o_l = tl.program_id(0), tl.program_id(1), tl.arange(0, L)
    b_row = i_t + tl.arange(0, 1)
    b_first, b_count = _places(
        p_lengths, requests, span, ranks, rank, ctas, b_row, i_h, N, TOKENS, ROWS, GROUPS, TILE, BB
    )
    dependency_wait(PDL)
    b_o, b_lse = _merged(p_parts, p_part_lse, b_first, b_count, ROWS, o_l, L, 1)
    b_at = b_row.to(tl.int64) * N + i_h
    tl.store(p_o + b_at[:, None] * L + o_l[None, :], b_o)
    tl.store(p_lse + b_at, b_lse)


def _options(pdl: bool) -> dict[str, object]:
    return {"num_warps": WARPS, **({"launch_pdl": True} if pdl else {})}


def _token_blocks(rows: int) -> int:
    return triton.cdiv(rows, TOKENS_AT_ONCE)


def run_query(spec, x, norm, w_qb, q, *, pdl) -> None:
    """q_a [T, R] → q [T, N, dn + dr], normed and projected; on PyTorch's current stream, as the others."""
    columns, inner = w_qb.shape
    numbers = (x.stride(0), x.shape[0], spec.eps)
    sizes = {"R": inner, "Q": columns, "BN": 16, "BK": min(256, inner & -inner), "BT": TOKENS_AT_ONCE}
    sizes["LINES"] = triton.next_power_of_2(-(-inner // 64))  # of 128 bytes in a row of the weight
    grid = (triton.cdiv(columns, 16), _token_blocks(x.shape[0]))
    mla_query_kernel[grid](x, norm, w_qb, q, *numbers, **sizes, PDL=pdl, **_options(pdl))


def run_absorb(q, w_uk, query, *, pdl) -> None:
    """q [T, N, dn + dr], w_uk [N, dn, L] → the absorbed query [T, N, L + dr]."""
    heads, nope, latent = w_uk.shape
    sizes = {"N": heads, "DN": nope, "KEY": q.shape[2] - nope, "L": latent, "BL": min(64, latent)}
    grid = (heads, latent // sizes["BL"], _token_blocks(q.shape[0]))
    numbers = (q.shape[0], w_uk.stride(0))
    mla_absorb_kernel[grid](q, w_uk, query, *numbers, **sizes, BT=TOKENS_AT_ONCE, PDL=pdl, **_options(pdl))


def _context(spec, split, lengths):
    """What places parts: numbers, and compile-time sizes."""
    numbers = (lengths.shape[0], split.span, spec.ranks, spec.rank, split.ctas)
    sizes = {"N": spec.heads, "TOKENS": spec.tokens, "ROWS": split.rows, "GROUPS": split.groups}
    return numbers, sizes | {"TILE": TILE, "BB": triton.next_power_of_2(lengths.shape[0])}


def run_value(spec, split, o, lse, lengths, w_uv, gate, out, *, shards=0, pdl) -> None:
    """Merge, project and gate: the parts of a core in their places, or o [P, T, N, L] and lse of `shards` shards."""
    heads, width, latent = w_uv.shape
    numbers, sizes = _context(spec, split, lengths)
    sizes |= {"V": width, "L": latent, "SHARDS": shards, "BV": min(16, width), "BT": TOKENS_AT_ONCE}
    strides = (w_uv.stride(0), gate.stride(0), out.stride(0), out.shape[0])
    grid = (heads, width // sizes["BV"], _token_blocks(out.shape[0]))
    mla_value_kernel[grid](
        o, lse, lengths, w_uv, gate, out, *strides, *numbers, **sizes, PDL=pdl, **_options(pdl)
    )


def run_merge(spec, split, o, lse, lengths, merged, merged_lse, *, pdl) -> None:
    """The parts of a core → o [T, N, L] and lse [T, N] of this rank's shard."""
    numbers, sizes = _context(spec, split, lengths)
    grid = (merged.shape[0], spec.heads)
    mla_merge_kernel[grid](
        o, lse, lengths, merged, merged_lse, *numbers, **sizes, L=merged.shape[2], PDL=pdl, **_options(pdl)
    )


def builds() -> list[Build]:
    """The call sites that CI compiles and audits: a rank of TP8."""
    f32, bf16, once = "*fp32", "*bf16", {"BT": TOKENS_AT_ONCE, "PDL": True}
    query = {
        "p_x": bf16,
        "p_norm": bf16,
        "p_w": bf16,
        "p_q": bf16,
        "s_x": "i32",
        "rows": "i32",
        "eps": "fp32",
    }
    absorb = {"p_q": bf16, "p_w": bf16, "p_query": bf16, "rows": "i32", "s_head": "i32"}
    context = dict.fromkeys(("requests", "span", "ranks", "rank", "ctas"), "i32")
    parts = {"p_o": f32, "p_lse": f32, "p_lengths": "*i32"}
    value = {**parts, "p_w": bf16, "p_gate": bf16, "p_out": bf16}
    value |= dict.fromkeys(("s_head", "s_gate", "s_out", "rows"), "i32") | context
    merge = {"p_parts": f32, "p_part_lse": f32, "p_lengths": "*i32", "p_o": f32, "p_lse": f32, **context}
    site = {"N": 12, "TOKENS": 1, "L": LATENT, "ROWS": 16, "GROUPS": 1, "TILE": TILE, "BB": 64, "PDL": True}
    sizes = {"R": 1536, "Q": 12 * HEAD, "BN": 16, "BK": 256, "LINES": 32, **once}
    head = {"N": 12, "DN": NOPE, "KEY": KEY, "L": LATENT, "BL": 64, **once}
    columns = {**site, "V": VALUE, "BV": 16, "BT": TOKENS_AT_ONCE}
    parts_roles = ("activation", "activation", "table")
    value_roles = (*parts_roles, "weight", "activation", "output")
    return [
        _build(mla_query_kernel, query, sizes, ("activation", "weight", "weight", "output")),
        _build(mla_absorb_kernel, absorb, head, ("activation", "weight", "output")),
        _build(mla_value_kernel, value, {**columns, "SHARDS": 0}, value_roles),
        _build(mla_value_kernel, value, {**columns, "SHARDS": 8}, value_roles, " of shards"),
        _build(mla_merge_kernel, merge, site, (*parts_roles, "output", "output")),
    ]


def _build(kernel, types, constants, roles, note="") -> Build:
    signature = types | dict.fromkeys(constants, "constexpr")
    pointers = len(roles)
    scalars: list[Role] = ["scalar"] * (len(types) - pointers + 2)
    return Build(
        f"mla triton {kernel.__name__}{note}",
        kernel.__name__,
        lambda target: triton_image(kernel, target, signature, constants, warps=WARPS, aligned=pointers),
        (*roles, *scalars),
        limits=Limits(stack_bytes=1024),  # the fallback may spill
    )
