"""The routed experts in Triton: the portable path, right for every scale, straight from Humming's layout."""

import torch
import triton
import triton.language as tl

from runtime.kernels.common.launch.triton_compile import triton_image
from runtime.kernels.common.launch.triton_wait import dependency_wait
from runtime.kernels.common.workshop.audit import Limits
from runtime.kernels.common.workshop.builds import Build

WARPS = 4
GROUP_TOKENS = 8


@triton.jit
def _weights(p_w, p_scales, expert, o_n, o_k, N: tl.constexpr, K: tl.constexpr):
    """Weights [len(o_n), len(o_k)] of an expert in FP32; see `layout.py` for where they are."""
    n, k = o_n[:, None], o_k[None, :]
    lane = n % 8 * 4 + k % 8 // 2
    word = (expert * (K // 16) + k // 16).to(tl.int64) * (2 * N) + n // 64 * 128 + lane * 4 + n % 64 // 16
    nibble = k % 2 * 4 + n % 16 // 8 * 2 + k % 16 // 8
    code = (tl.load(p_w + word) >> (nibble * 4)) & 0xF
    exponent, mantissa = (code & 7) >> 1, (code & 1).to(tl.float32)
    power = tl.where(exponent > 1, (1 << tl.maximum(exponent - 1, 0)), 1).to(tl.float32)
    magnitude = tl.where(exponent == 0, mantissa * 0.5, power * (1.0 + mantissa * 0.5))
    value = tl.where(code >= 8, -magnitude, magnitude)
    place = (expert * (K // 32) + k // 32).to(tl.int64) * N + n // 64 * 64 + n % 8 * 8 + n % 64 // 8
    scale = tl.load(p_scales + place).to(tl.int32)
    bits = tl.where(scale == 0, 0x00400000, tl.where(scale == 255, 0x7FC00000, scale << 23))
    return value * bits.to(tl.float32, bitcast=True)


@triton.jit
def _product(p_rows, o_row, p_w, p_scales, expert, o_n, N: tl.constexpr, K: tl.constexpr, BK: tl.constexpr):
    """Products [len(o_n), len(o_row)] of an expert's rows o_n with the vectors p_rows + o_row, in FP32."""
    b_sum = tl.zeros([o_n.shape[0], o_row.shape[0]], tl.float32)
    for start in range(0, K, BK):
        o_k = start + tl.arange(0, BK)
        b_w = _weights(p_w, p_scales, expert, o_n, o_k, N, K)
        b_x = tl.load(p_rows + o_row[:, None] + o_k[None, :]).to(tl.float32)
        b_sum += tl.sum(b_w[:, None, :] * b_x[None, :, :], axis=2)
    return b_sum


@triton.jit
def _situ_factor(value, beta):
    """beta tanh(value / beta), without overflow."""
    small = tl.exp(-2.0 * tl.abs(value) / beta)
    bounded = beta * (1.0 - small) / (1.0 + small)
    return tl.where(value < 0, -bounded, bounded)


@triton.jit
def moe_gate_up_kernel(
    p_x,  # [T, K]
    p_w,  # [E, K/16, 4 I] int32
    p_scales,  # [E, K/32, 2 I] uint8
    p_experts,  # [G] int32
    p_rows,  # [G, 8] int32
    p_count,  # [1] int32
    p_hidden,  # [P, I]
    s_x,
    beta,
    linear_beta,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    SLOTS: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: a group of up to eight tokens, BN columns of its activations."""
    i_g, i_n = tl.program_id(0), tl.program_id(1)
    dependency_wait(PDL)
    if i_g < tl.load(p_count):
        expert = tl.load(p_experts + i_g)
        b_pair = tl.load(p_rows + i_g * 8 + tl.arange(0, 8))
        m_pair = b_pair >= 0
        b_pair = tl.where(m_pair, b_pair, -1 - b_pair)
        o_n = i_n * BN + tl.arange(0, BN)
        o_row = (b_pair // SLOTS).to(tl.int64) * s_x
        b_gate = _product(p_x, o_row, p_w, p_scales, expert, o_n, 2 * WIDTH, K, BK)
        b_up = _product(p_x, o_row, p_w, p_scales, expert, WIDTH + o_n, 2 * WIDTH, K, BK)
        b_gate = b_gate.to(p_hidden.dtype.element_ty).to(tl.float32)  # rounding point
        b_up = b_up.to(p_hidden.dtype.element_ty).to(tl.float32)
        b_gate = _situ_factor(b_gate, beta) * tl.sigmoid(b_gate)
        b_out = b_gate * _situ_factor(b_up, linear_beta)
        p_out = p_hidden + b_pair[None, :].to(tl.int64) * WIDTH + o_n[:, None]
        tl.store(p_out, b_out.to(p_hidden.dtype.element_ty), mask=m_pair[None, :] & (o_n[:, None] >= 0))


@triton.jit
def moe_down_kernel(
    p_hidden,  # [P, I]
    p_w,  # [E, I/16, 2 K] int32
    p_scales,  # [E, I/32, K] uint8
    p_experts,  # [G] int32
    p_rows,  # [G, 8] int32
    p_count,  # [1] int32
    p_partial,  # [P, K]
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: a group of up to eight pairs, BN columns of their rows."""
    i_g, i_n = tl.program_id(0), tl.program_id(1)
    dependency_wait(PDL)
    if i_g < tl.load(p_count):
        expert = tl.load(p_experts + i_g)
        b_pair = tl.load(p_rows + i_g * 8 + tl.arange(0, 8))
        m_pair = b_pair >= 0
        b_pair = tl.where(m_pair, b_pair, -1 - b_pair)
        o_n = i_n * BN + tl.arange(0, BN)
        o_row = b_pair.to(tl.int64) * WIDTH
        b_out = _product(p_hidden, o_row, p_w, p_scales, expert, o_n, K, WIDTH, BK)
        p_out = p_partial + b_pair[None, :].to(tl.int64) * K + o_n[:, None]
        tl.store(p_out, b_out.to(p_partial.dtype.element_ty), mask=m_pair[None, :] & (o_n[:, None] >= 0))


@triton.jit
def moe_sum_kernel(
    p_partial,  # [P, K]
    p_ids,  # [T, SLOTS] int32
    p_weights,  # [T, SLOTS] fp32
    p_out,  # [T, K]
    s_out,
    first,
    local,
    K: tl.constexpr,
    SLOTS: tl.constexpr,
    BN: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: BN columns of a token, its slots in order."""
    i_t, i_n = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dependency_wait(PDL)
    o_n = i_n * BN + tl.arange(0, BN)
    b_sum = tl.zeros([BN], tl.float32)
    for slot in range(SLOTS):
        expert = tl.load(p_ids + i_t * SLOTS + slot) - first
        if (expert >= 0) & (expert < local):
            weight = tl.load(p_weights + i_t * SLOTS + slot)
            b_sum += weight * tl.load(p_partial + (i_t * SLOTS + slot) * K + o_n).to(tl.float32)
    tl.store(p_out + i_t * s_out + o_n, b_sum.to(p_out.dtype.element_ty))


def run(spec, x, w13, w2, routing, workspace, out, *, pdl) -> None:
    """Launch on PyTorch's current stream; w13, w2: (weight, scales in any view)."""
    options = {"num_warps": WARPS, **({"launch_pdl": True} if pdl else {})}
    sizes = {"K": spec.latent, "WIDTH": spec.width, "BN": 64, "BK": 32, "PDL": pdl}
    tokens, groups = x.shape[0], x.shape[0] * spec.top_k
    tables = (routing.experts, routing.rows, routing.count)
    (w13, s13), (w2, s2) = ((w, s.view(torch.uint8)) for w, s in (w13, w2))
    numbers = (x.stride(0), spec.beta, spec.linear_beta)
    moe_gate_up_kernel[(groups, spec.width // 64)](
        x, w13, s13, *tables, workspace.hidden, *numbers, SLOTS=spec.top_k, **sizes, **options
    )
    moe_down_kernel[(groups, spec.latent // 64)](
        workspace.hidden, w2, s2, *tables, workspace.partial, **sizes, **options
    )
    choices = (routing.ids, routing.weights, out, out.stride(0), routing.first, routing.local)
    moe_sum_kernel[(tokens, spec.latent // 64)](
        workspace.partial, *choices, K=spec.latent, SLOTS=spec.top_k, BN=64, PDL=pdl, **options
    )


_GROUPS = {"p_experts": "*i32", "p_rows": "*i32", "p_count": "*i32"}
_SIZES = {"K": 3584, "WIDTH": 384, "BN": 64, "BK": 32, "PDL": True}


def builds() -> list[Build]:
    """The call sites that CI compiles and audits."""
    weight = {"p_w": "*i32", "p_scales": "*u8"}
    groups = ("activation",) * 3
    gate_up = {"p_x": "*bf16", **weight, **_GROUPS, "p_hidden": "*bf16", "s_x": "i32"}
    gate_up |= {"beta": "fp32", "linear_beta": "fp32"}
    down = {"p_hidden": "*bf16", **weight, **_GROUPS, "p_partial": "*bf16"}
    total = {"p_partial": "*bf16", "p_ids": "*i32", "p_weights": "*fp32", "p_out": "*bf16"}
    total |= dict.fromkeys(["s_out", "first", "local"], "i32")
    product = ("activation", "weight", "weight", *groups, "output")
    return [
        _build(moe_gate_up_kernel, gate_up, _SIZES | {"SLOTS": 16}, (*product, *["scalar"] * 5), 7),
        _build(moe_down_kernel, down, _SIZES, (*product, *["scalar"] * 2), 7),
        _build(
            moe_sum_kernel,
            total,
            {"K": 3584, "SLOTS": 16, "BN": 64, "PDL": True},
            (*("activation",) * 3, "output", *["scalar"] * 5),
            4,
        ),
    ]


def _build(kernel, types, constants, roles, aligned) -> Build:
    signature = types | dict.fromkeys(constants, "constexpr")
    return Build(
        f"moe_experts triton {kernel.__name__}",
        kernel.__name__,
        lambda target: triton_image(kernel, target, signature, constants, warps=WARPS, aligned=aligned),
        roles,
        limits=Limits(stack_bytes=1024),  # the fallback may spill
    )
