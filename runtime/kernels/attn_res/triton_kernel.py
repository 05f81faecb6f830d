"""Attention Residuals in Triton: the portable path, one program per token."""

import triton
import triton.language as tl

from runtime.kernels.common.launch.triton_compile import triton_image
from runtime.kernels.common.launch.triton_wait import dependency_wait
from runtime.kernels.common.workshop.audit import Limits
from runtime.kernels.common.workshop.builds import Build

WARPS = 8


@triton.jit
def attn_res_kernel(
    p_prefix,  # [T, D]
    p_delta,  # [T, D]
    p_blocks,  # [T, B, D]
    p_score_norm,  # [D]
    p_score_vec,  # [D]
    p_out_norm,  # [D]
    p_out,  # [T, D]
    s_prefix,
    s_delta,
    s_token,
    s_block,
    s_out,
    eps,
    out_eps,
    D: tl.constexpr,
    BD: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
    WRITE: tl.constexpr,  # block that stores the new prefix, or -1
    HAS_DELTA: tl.constexpr,
    HAS_NORM: tl.constexpr,
    PDL: tl.constexpr,
):
    """Online softmax over the sources, block by block; the prefix is the last source."""
    i_t = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, BD)
    m_d = o_d < D
    dependency_wait(PDL)

    b_prefix = tl.load(p_prefix + i_t * s_prefix + o_d, mask=m_d, other=0.0).to(tl.float32)
    if HAS_DELTA:
        b_delta = tl.load(p_delta + i_t * s_delta + o_d, mask=m_d, other=0.0).to(tl.float32)
        b_prefix = (b_prefix + b_delta).to(p_prefix.dtype.element_ty)  # rounding point
        tl.store(p_prefix + i_t * s_prefix + o_d, b_prefix, mask=m_d)
        b_prefix = b_prefix.to(tl.float32)
    if WRITE >= 0:
        p_write = p_blocks + i_t * s_token + WRITE * s_block + o_d
        tl.store(p_write, b_prefix.to(p_blocks.dtype.element_ty), mask=m_d)

    b_mix = b_prefix
    if NUM_BLOCKS > 0:
        b_weight = tl.load(p_score_norm + o_d, mask=m_d, other=0.0).to(tl.float32)
        b_weight *= tl.load(p_score_vec + o_d, mask=m_d, other=0.0).to(tl.float32)
        top = tl.sum(b_prefix * b_weight) * tl.rsqrt(tl.sum(b_prefix * b_prefix) / D + eps)
        whole = 1.0
        for i in tl.static_range(NUM_BLOCKS):
            b_source = tl.load(p_blocks + i_t * s_token + i * s_block + o_d, mask=m_d, other=0.0).to(
                tl.float32
            )
            score = tl.sum(b_source * b_weight) * tl.rsqrt(tl.sum(b_source * b_source) / D + eps)
            new_top = tl.maximum(top, score)
            old, new = tl.exp(top - new_top), tl.exp(score - new_top)
            b_mix = old * b_mix + new * b_source
            whole, top = old * whole + new, new_top
        b_mix /= whole
    if HAS_NORM:
        b_gain = tl.load(p_out_norm + o_d, mask=m_d, other=0.0).to(tl.float32)
        b_mix *= tl.rsqrt(tl.sum(b_mix * b_mix) / D + out_eps) * b_gain
    tl.store(p_out + i_t * s_out + o_d, b_mix.to(p_out.dtype.element_ty), mask=m_d)


def run(prefix, delta, blocks, out, *, num_blocks, write, score_norm, score_vec, eps, out_norm, out_eps, pdl):
    """Launch on PyTorch's current stream; `prefix`, and `blocks[:, write]` if asked, are updated in place."""
    tokens, hidden = prefix.shape
    options = {"launch_pdl": True} if pdl else {}
    attn_res_kernel[(tokens,)](
        prefix,
        prefix if delta is None else delta,
        blocks,
        score_norm,
        score_vec,
        score_norm if out_norm is None else out_norm,
        out,
        prefix.stride(0),
        0 if delta is None else delta.stride(0),
        blocks.stride(0),
        blocks.stride(1),
        out.stride(0),
        eps,
        out_eps,
        D=hidden,
        BD=triton.next_power_of_2(hidden),
        NUM_BLOCKS=num_blocks,
        WRITE=-1 if write is None else write,
        HAS_DELTA=delta is not None,
        HAS_NORM=out_norm is not None,
        PDL=pdl,
        num_warps=WARPS,
        **options,
    )


def builds() -> list[Build]:
    """The call sites that CI compiles and audits."""
    return [_build(*site) for site in [(0, 0, False, True), (8, -1, True, True), (3, 3, True, False)]]


def _build(num_blocks, write, has_delta, has_norm) -> Build:
    pointers = ["p_prefix", "p_delta", "p_blocks", "p_score_norm", "p_score_vec", "p_out_norm", "p_out"]
    strides = ["s_prefix", "s_delta", "s_token", "s_block", "s_out"]
    constants = {
        "D": 7168,
        "BD": 8192,
        "NUM_BLOCKS": num_blocks,
        "WRITE": write,
        "HAS_DELTA": has_delta,
        "HAS_NORM": has_norm,
        "PDL": True,
    }
    signature = dict.fromkeys(pointers, "*bf16") | dict.fromkeys(strides, "i32")
    signature |= {"eps": "fp32", "out_eps": "fp32"} | dict.fromkeys(constants, "constexpr")
    prefix_again = "activation" if has_delta else "state"
    roles = ("state", prefix_again, "state", "weight", "weight", "weight", "output", *["scalar"] * 9)
    return Build(
        f"attn_res triton blocks={num_blocks} write={write}",
        attn_res_kernel.__name__,
        lambda target: triton_image(attn_res_kernel, target, signature, constants, warps=WARPS, aligned=12),
        roles,
        limits=Limits(stack_bytes=0),
    )
