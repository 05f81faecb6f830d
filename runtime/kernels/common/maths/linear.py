"""Matrix products whose rows do not depend, in any bit, on what else is in the batch.

A plain FP32 product on CPU breaks batch invariance in the last bits: BLAS takes a matrix-vector kernel for
one row, other edge kernels for 2, 3, 5, … rows, and cuts long inner axes into blocks, or between threads, by
the size of the whole; each has its own order of additions. Whole tiles always take the same kernel and a
short inner axis stays whole, so the functions here pad to tiles and add inner blocks in order. This is a
property of the BLAS under PyTorch, not a guarantee of PyTorch: `test_linear.py` checks it where it runs.
Seen with MKL on AVX2 (1 and 2 threads) and AVX-512 (1 to 16 threads); nothing is promised on a GPU.
"""

from functools import reduce
from itertools import starmap

import torch
from torch import Tensor
from torch.nn import functional as F

from runtime.kernels.common.maths.precision import compute_dtype

TILE = 16  # a multiple of the row tiles of the BLAS kernels seen so far (4 and 12)
INNER_BLOCK = 128  # at 256, MKL's FP64 product on AVX-512 still splits the axis with two threads


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
    rows, outputs = x.reshape(-1, x.shape[-1]), weight.shape[0]
    out = _tiled_linear(pad_to_tile(rows, 0, 1).to(dtype), pad_to_tile(weight, 0, 1).to(dtype))
    return out[: rows.shape[0], :outputs].reshape(*x.shape[:-1], outputs).to(x.dtype)


def row_stable_grouped_linear(x: Tensor, weights: Tensor, group_sizes: list[int]) -> Tensor:
    """Return `row_stable_linear` of consecutive groups of rows, each with its own weight.

    x: [P, R]. weights: [G, O, R]. group_sizes: G row counts, each a multiple of `TILE`, P in total.
    Returns [P, O] in `x.dtype`.
    """
    dtype, outputs = compute_dtype(x, weights), weights.shape[1]
    x_tiled, weights = pad_to_tile(x, 1).to(dtype), pad_to_tile(weights, 1, 2)
    out = x.new_empty(x.shape[0], outputs)
    start = 0
    for group, size in enumerate(group_sizes):
        if size:
            rows = slice(start, start + size)
            out[rows] = _tiled_linear(x_tiled[rows], weights[group].to(dtype))[:, :outputs]
            start += size
    return out


def row_stable_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the batched product [B, M, N] of a [B, M, K] and b [B, K, N], of one dtype.

    An entry depends neither on B, M and N nor on zeros at the end of the inner axis, so attention over a cache
    padded with zeros equals attention over the bare cache.
    """
    rows, columns = a.shape[1], b.shape[2]
    a, b = pad_to_tile(a, 1, 2), pad_to_tile(b, 1, 2)
    blocks = zip(a.split(INNER_BLOCK, dim=2), b.split(INNER_BLOCK, dim=1), strict=True)
    return reduce(torch.add, starmap(torch.bmm, blocks))[:, :rows, :columns]


def _tiled_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return `x @ weight.T` of whole tiles x [M, R] and weight [O, R], adding inner blocks in order."""
    if x.shape[1] <= INNER_BLOCK:
        return F.linear(x, weight)
    blocks = zip(x.split(INNER_BLOCK, dim=1), weight.split(INNER_BLOCK, dim=1), strict=True)
    return reduce(torch.add, starmap(F.linear, blocks))
