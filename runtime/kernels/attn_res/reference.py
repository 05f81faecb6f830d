"""Block Attention Residuals in PyTorch: the definition of the operator."""

from typing import NamedTuple

import torch
from torch import Tensor

from runtime.kernels.common.maths.norms import rms_norm
from runtime.kernels.common.maths.precision import compute_dtype


class AttnResOutput(NamedTuple):
    """What one Attention Residual returns; nothing is updated in place."""

    out: Tensor
    """[T, D] in `prefix.dtype`: the (normalised) mixture, the next sub-layer's input."""
    prefix: Tensor
    """[T, D]: the running sum inside the current block, with `delta` added."""
    blocks: Tensor
    """[T, B, D]: the argument itself, or an updated copy when `write` is given."""


def attn_res(
    prefix: Tensor,
    delta: Tensor | None,
    blocks: Tensor,
    *,
    num_blocks: int,
    write: int | None,
    score_norm: Tensor,
    score_vec: Tensor,
    eps: float,
    out_norm: Tensor | None,
    out_eps: float,
) -> AttnResOutput:
    """Mix the finished blocks and the running prefix by a softmax over their scores, then normalise.

    prefix: [T, D] running sum. delta: [T, D] output of the last sub-layer, not added yet, or None.
    blocks: [T, B, D] block snapshots, of which the first `num_blocks` are sources; the others may hold
    anything, NaN included. write: index of the block that stores the new prefix, or None; it does not become
    a source of this call. score_norm, score_vec: [D] RMSNorm weight and vector whose product scores a source.
    out_norm: [D] RMSNorm weight of the result, or None for the bare mixture.

    FP32 inside (FP64 for FP64 operands). Rounding points: the prefix after adding `delta` (to
    `prefix.dtype`, and this rounded value is stored, scored and mixed), and the result (to `prefix.dtype`).
    The mixture itself is not rounded before `out_norm`. Every row is computed by itself.

    Raises ValueError if `num_blocks` or `write` does not fit `blocks`.
    """
    capacity = blocks.shape[1]
    if not 0 <= num_blocks <= capacity:
        raise ValueError(f"num_blocks is {num_blocks}, but blocks holds {capacity}")
    if write is not None and not 0 <= write < capacity:
        raise ValueError(f"write is {write}, but blocks holds {capacity}")
    dtype = compute_dtype(prefix, delta, blocks)
    if delta is not None:
        prefix = (prefix.to(dtype) + delta.to(dtype)).to(prefix.dtype)
    mix = prefix.to(dtype)
    if num_blocks > 0:
        sources = torch.cat([blocks[:, :num_blocks].to(dtype), mix[:, None]], dim=1)
        mix = _mixture(sources, score_norm.to(dtype) * score_vec.to(dtype), eps)
    if write is not None:
        blocks = blocks.clone()
        blocks[:, write] = prefix
    out = mix if out_norm is None else rms_norm(mix, out_norm, out_eps)
    return AttnResOutput(out.to(prefix.dtype), prefix, blocks)


def _mixture(sources: Tensor, score_weight: Tensor, eps: float) -> Tensor:
    """Return the softmax-weighted sum [T, D] of the un-normalised `sources` [T, n, D]."""
    inverse_rms = torch.rsqrt(sources.square().mean(-1) + eps)
    scores = (sources * score_weight).sum(-1) * inverse_rms  # [T, n] = <RMSNorm(source), score_vec>
    return (torch.softmax(scores, dim=-1)[..., None] * sources).sum(1)
