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


def pad_to_tile(x: Tensor, *dims: int) -> Tensor:
    """Return `x` with zeros appended along each of `dims` (≥ 0) up to a multiple of `TILE`."""
    for dim in dims:
        missing = -x.shape[dim] % TILE
        if missing:
            x = F.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, missing))
    return x


def row_stable_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return `x @ weight.T`, accumulated in FP32 (FP64 for FP64 operands) and rounded once to `x.dtype`.

    x: [..., R]. weight: [O, R], any floating dtype; R and O that are multiples of `TILE` avoid a copy.
    Returns [..., O].
    """
    dtype = compute_dtype(x, weight)
    rows = x.reshape(-1, x.shape[-1])
    out = F.linear(pad_to_tile(rows, 0, 1).to(dtype), pad_to_tile(weight, 0, 1).to(dtype))
    return out[: rows.shape[0], : weight.shape[0]].reshape(*x.shape[:-1], weight.shape[0]).to(x.dtype)


def row_stable_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the batched product [B, M, N] of a [B, M, K] and b [B, K, N], of one dtype.

    An entry depends neither on B, M and N nor on zeros at the end of the inner axis: K is summed in blocks of
    `INNER_BLOCK`, in order. So attention over a cache padded with zeros equals attention over the bare cache.
    """
    size = a.shape[1], b.shape[2]
    a, b = pad_to_tile(a, 1, 2), pad_to_tile(b, 1, 2)
    out = a.new_zeros(a.shape[0], a.shape[1], b.shape[2])
    for start in range(0, a.shape[2], INNER_BLOCK):
        block = slice(start, start + INNER_BLOCK)
        out += torch.bmm(a[:, :, block], b[:, block])
    return out[:, : size[0], : size[1]]
