"""Tensor parallelism without an engine: which slice of a weight this rank holds, and how partial sums meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def _identity(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class Shard:
    """This rank's place in the tensor-parallel group. ``all_reduce`` sums a partial result over the group."""

    size: int = 1
    rank: int = 0
    all_reduce: Callable[[Tensor], Tensor] = _identity

    def local(self, total: int, what: str) -> int:
        """The local extent of a dimension; ``ValueError`` when the group does not divide it."""
        if total % self.size:
            raise ValueError(f"{what} = {total} is not divisible by tensor_parallel_size = {self.size}")
        return total // self.size


class Weight(nn.Module):
    """A bare ``<name>.weight``: global shape, optionally split over the group along ``dim``."""

    def __init__(
        self, *shape: int, shard: Shard | None = None, dim: int = 0, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.shape, self.shard, self.dim = shape, shard, dim
        local = list(shape)
        if shard is not None:
            local[dim] = shard.local(shape[dim], f"dimension {dim} of {tuple(shape)}")
        self.weight = nn.Parameter(torch.empty(local, dtype=dtype), requires_grad=False)

    def load(self, full: Tensor) -> None:
        """Take this rank's slice of the full tensor (reshaped to the declared shape)."""
        full = full.reshape(self.shape)
        if self.shard is not None:
            extent = self.weight.shape[self.dim]
            full = full.narrow(self.dim, self.shard.rank * extent, extent)
        self.weight.data.copy_(full)

    def forward(self, x: Tensor) -> Tensor:
        """``x @ weight.T``."""
        return F.linear(x, self.weight)


class HeadVector(Weight):
    """A per-head or per-channel FP32 vector stored without the ``.weight`` suffix (``A_log``, ``dt_bias``).

    ``A_log`` is published padded ([128], 96 valid) or as [1, 1, 96, 1]: the first ``shape[0]`` values count.
    """

    def load(self, full: Tensor) -> None:
        """Take this rank's slice of the valid values."""
        super().load(full.flatten()[: self.shape[0]])
