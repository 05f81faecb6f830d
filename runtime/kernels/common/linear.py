"""Matrix products whose rows do not depend on how many other rows are in the batch."""

from torch import Tensor
from torch.nn import functional as F

ROW_TILE = 16  # a multiple of every row tile that the BLAS micro-kernels seen so far use (4 and 12)


def row_stable_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return `x @ weight.T` with the rows padded to a multiple of `ROW_TILE`.

    x: [..., R]. weight: [O, R], same dtype. Returns [..., O] in that dtype.

    A plain FP32 product breaks batch invariance in the last bits: BLAS takes a matrix-vector kernel for one
    row and other edge kernels for 2, 3, 5, … rows, each with its own order of additions. Full tiles always
    take the same kernel. This is a property of the BLAS, not a guarantee of PyTorch: it is tested here for
    FP32 and FP64, and BF16 products (oneDNN) have it without padding. One output column is itself
    a matrix-vector product, so that case is a plain multiply and sum.
    """
    if weight.shape[0] == 1:
        return (x * weight[0]).sum(-1, keepdim=True)
    rows = x.reshape(-1, x.shape[-1])
    padding = -rows.shape[0] % ROW_TILE
    out = F.linear(F.pad(rows, (0, 0, 0, padding)), weight)
    return out[: rows.shape[0]].reshape(*x.shape[:-1], weight.shape[0])
