"""The arithmetic precision of the references: FP32 inside, or FP64 as soon as an operand is FP64."""

import torch
from torch import Tensor


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """Return float64 if any of `tensors` is float64, else float32. `None` stands for an absent operand.

    The references do all arithmetic in this dtype and round only where their docstrings name a rounding
    point, so the same function serves BF16 models, FP32 models and FP64 checks of the mathematics.
    """
    if any(tensor is not None and tensor.dtype == torch.float64 for tensor in tensors):
        return torch.float64
    return torch.float32
