"""KDA decode and verify in Triton: the portable path, one program per (request, head)."""

import triton
import triton.language as tl

from runtime.kernels.common.launch.triton_compile import triton_image
from runtime.kernels.common.launch.triton_wait import dependency_wait
from runtime.kernels.common.workshop.audit import Limits
from runtime.kernels.common.workshop.builds import Build

WARPS = 8
HEAD = 128


@triton.jit
def _convolved(p_conv, p_x, s_tap, s_row, p_weight, o_c, s_channel, t):
    """SiLU of the four-tap convolution of token `t`; taps before the step come from the window."""
    b_y = tl.zeros([o_c.shape[0]], tl.float32)
    for i in tl.static_range(4):
        p_tap = tl.where(
            t + i < 3, p_conv + (t + i) * s_tap + o_c * s_channel, p_x + (t + i - 3) * s_row + o_c
        )
        b_y += tl.load(p_tap).to(tl.float32) * tl.load(p_weight + o_c * 4 + i)
    return b_y * tl.sigmoid(b_y)


@triton.jit
def _store_window(p_old, p_new, p_x, s_tap, s_row, o_c, s_channel, T: tl.constexpr):
    """Replace a window by its two newest taps and the inputs of the step."""
    b_first = tl.load(p_old + s_tap + o_c * s_channel)
    b_second = tl.load(p_old + 2 * s_tap + o_c * s_channel)
    tl.debug_barrier()  # every tap is read before any is replaced
    tl.store(p_new + o_c * s_channel, b_first)
    tl.store(p_new + s_tap + o_c * s_channel, b_second)
    for t in tl.static_range(T):
        tl.store(p_new + (2 + t) * s_tap + o_c * s_channel, tl.load(p_x + t * s_row + o_c))


@triton.jit
def kda_decode_kernel(
    p_projected,  # [N T, q | k | v | gate | f_a | beta]
    p_f_b,  # [H K, K]
    p_conv_weight,  # [3 H K, 4] fp32
    p_A_log,  # [H] fp32
    p_dt_bias,  # [H, K] fp32
    p_norm,  # [K] fp32
    p_conv_state,  # [S, W, 3 H K]
    p_state,  # [S, H, V, K] fp32
    p_slots,  # [N, T] int32
    p_accepted,  # [N] int32
    p_out,  # [N T, H K]
    s_row,
    s_conv_slot,
    s_tap,
    s_channel,
    s_state_slot,
    s_state_head,
    s_slots,
    s_out,
    lower_bound,
    eps,
    scale,
    H: tl.constexpr,
    K: tl.constexpr,
    T: tl.constexpr,
    PDL: tl.constexpr,
):
    """All tokens of one request and head; the state stays in registers between tokens."""
    i_h, i_n = tl.program_id(0), tl.program_id(1)
    o_k = tl.arange(0, K)
    dependency_wait(PDL)
    start = 0
    if T > 1:
        start = tl.load(p_accepted + i_n) - 1
    slot = tl.load(p_slots + i_n * s_slots + start).to(tl.int64)
    p_row = p_projected + (i_n * T).to(tl.int64) * s_row
    p_y = p_out + (i_n * T).to(tl.int64) * s_out + i_h * K + o_k
    if slot <= 0:
        for t in tl.static_range(T):
            tl.store(p_y + t * s_out, tl.zeros([K], tl.float32).to(p_out.dtype.element_ty))
    else:
        D: tl.constexpr = H * K
        first = tl.load(p_slots + i_n * s_slots).to(tl.int64)
        p_conv = p_conv_state + first * s_conv_slot + start * s_tap
        o_square = o_k[:, None] * K + o_k[None, :]
        b_S = tl.load(p_state + slot * s_state_slot + i_h * s_state_head + o_square)  # [V, K]
        b_bias = tl.load(p_dt_bias + i_h * K + o_k)
        b_norm = tl.load(p_norm + o_k)
        slope = tl.exp(tl.load(p_A_log + i_h))
        o_c = i_h * K + o_k
        for t in range(T):
            p_t = p_row + t * s_row
            b_q = _convolved(p_conv, p_row, s_tap, s_row, p_conv_weight, o_c, s_channel, t)
            b_k = _convolved(p_conv, p_row, s_tap, s_row, p_conv_weight, D + o_c, s_channel, t)
            b_v = _convolved(p_conv, p_row, s_tap, s_row, p_conv_weight, 2 * D + o_c, s_channel, t)
            b_q *= tl.rsqrt(tl.sum(b_q * b_q) + 1e-6) * scale
            b_k *= tl.rsqrt(tl.sum(b_k * b_k) + 1e-6)
            b_f_a = tl.load(p_t + 4 * D + o_k).to(tl.float32)
            b_f_b = tl.load(p_f_b + i_h * K * K + o_square).to(tl.float32)
            b_raw = (
                tl.sum(b_f_b * b_f_a[None, :], 1).to(p_f_b.dtype.element_ty).to(tl.float32)
            )  # rounding point
            b_decay = tl.exp(lower_bound * tl.sigmoid(slope * (b_raw + b_bias)))
            beta = tl.sigmoid(tl.load(p_t + 4 * D + K + i_h).to(tl.float32))
            b_S *= b_decay[None, :]
            b_error = beta * (b_v - tl.sum(b_S * b_k[None, :], 1))
            b_S += b_error[:, None] * b_k[None, :]
            b_o = tl.sum(b_S * b_q[None, :], 1)
            target = tl.load(p_slots + i_n * s_slots + t).to(tl.int64)
            if target > 0:
                tl.store(p_state + target * s_state_slot + i_h * s_state_head + o_square, b_S)
            b_gate = tl.load(p_t + 3 * D + o_c).to(tl.float32)
            b_y = b_o * tl.rsqrt(tl.sum(b_o * b_o) / K + eps) * b_norm * tl.sigmoid(b_gate)
            tl.store(p_y + t * s_out, b_y.to(p_out.dtype.element_ty))
        p_new = p_conv_state + first * s_conv_slot
        for part in tl.static_range(3):
            _store_window(p_conv, p_new, p_row, s_tap, s_row, part * D + o_c, s_channel, T)


def run(projected, weights, conv_state, state, slots, accepted, out, *, lower_bound, eps, pdl):
    """Launch on PyTorch's current stream; `conv_state` and `state` are updated in place."""
    heads, requests = state.shape[1], slots.shape[0]
    options = {"launch_pdl": True} if pdl else {}
    kda_decode_kernel[(heads, requests)](
        projected,
        *weights,
        conv_state,
        state,
        slots,
        accepted,
        out,
        projected.stride(0),
        conv_state.stride(0),
        conv_state.stride(1),
        conv_state.stride(2),
        state.stride(0),
        state.stride(1),
        slots.stride(0),
        out.stride(0),
        lower_bound,
        eps,
        HEAD**-0.5,
        H=heads,
        K=HEAD,
        T=projected.shape[0] // requests,
        PDL=pdl,
        num_warps=WARPS,
        **options,
    )


def builds() -> list[Build]:
    """The head counts and query lengths that CI compiles and audits."""
    return [_build(12, 1), _build(6, 3)]


def _build(heads, tokens) -> Build:
    types = {
        "p_projected": "*bf16",
        "p_f_b": "*bf16",
        "p_conv_weight": "*fp32",
        "p_A_log": "*fp32",
        "p_dt_bias": "*fp32",
        "p_norm": "*fp32",
        "p_conv_state": "*bf16",
        "p_state": "*fp32",
        "p_slots": "*i32",
        "p_accepted": "*i32",
        "p_out": "*bf16",
    }
    strides = [
        "s_row",
        "s_conv_slot",
        "s_tap",
        "s_channel",
        "s_state_slot",
        "s_state_head",
        "s_slots",
        "s_out",
    ]
    constants = {"H": heads, "K": HEAD, "T": tokens, "PDL": True}
    signature = types | dict.fromkeys(strides, "i32") | dict.fromkeys(["lower_bound", "eps", "scale"], "fp32")
    signature |= dict.fromkeys(constants, "constexpr")
    roles = ("activation", *["weight"] * 5, "state", "state", "table", "table", "output", *["scalar"] * 13)
    return Build(
        f"kda_decode triton heads={heads} tokens={tokens}",
        kda_decode_kernel.__name__,
        lambda target: triton_image(kda_decode_kernel, target, signature, constants, warps=WARPS, aligned=11),
        roles,
        limits=Limits(stack_bytes=0 if tokens == 1 else 512),  # the fallback may spill
    )
