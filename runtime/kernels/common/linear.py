"""Matrix products whose rows do not depend, in any bit, on what else is in the batch.

A plain FP32 product on CPU breaks batch invariance in the last bits: BLAS takes a matrix-vector kernel for
one row, other edge kernels for 2, 3, 5, … rows, and cuts long inner axes into blocks whose length depends on
the total; each has its own order of additions. Whole tiles always take the same kernel, so the functions
here pad to tiles. This is a property of the BLAS under PyTorch, not a guarantee of PyTorch:
`test_linear.py` checks it where it runs, and nothing here promises it on a GPU.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from runtime.kernels.common.precision import compute_dtype

TILE = 16  # a multiple of the row tiles of the BLAS kernels seen so far (4 and 12)
INNER_BLOCK = 128  # shorter than the inner blocks of those kernels (384)


def row_stable_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return `x @ weight.T`, accumulated in FP32 (FP64 for FP64 operands) and rounded once to `x.dtype`.

    x: [..., R]. weight: [O, R], any floating dtype. Returns [..., O].
    """
    dtype = compute_dtype(x, weight)
    rows, wide_weight = x.reshape(-1, x.shape[-1]).to(dtype), weight.to(dtype)
    if weight.shape[0] == 1:  # the transposed product has one row, so it would be a matrix-vector kernel
        out = (rows * wide_weight).sum(-1, keepdim=True)
    else:
        out = F.linear(_pad(rows, 0), wide_weight)[: rows.shape[0]]
    return out.reshape(*x.shape[:-1], weight.shape[0]).to(x.dtype)


def row_stable_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the batched product [B, M, N] of a [B, M, K] and b [B, K, N], of one dtype.

    An entry depends neither on B, M and N nor on zeros at the end of the inner axis: K is summed in blocks of
    `INNER_BLOCK`, in order. So attention over a cache padded with zeros equals attention over the bare cache.
    """
    size = a.shape[1], b.shape[2]
    a, b = _pad(_pad(a, 1), 2), _pad(_pad(b, 1), 2)
    out = a.new_zeros(a.shape[0], a.shape[1], b.shape[2])
    for start in range(0, a.shape[2], INNER_BLOCK):
        block = slice(start, start + INNER_BLOCK)
        out += torch.bmm(a[:, :, block], b[:, block])
    return out[:, : size[0], : size[1]]


def _pad(x: Tensor, dim: int) -> Tensor:
    """Return `x` with zeros appended along `dim` up to a multiple of `TILE`."""
    missing = -x.shape[dim] % TILE
    return F.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, missing)) if missing else x
