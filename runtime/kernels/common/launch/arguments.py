"""Checks of operator arguments before any launch: one ValueError that names the argument, the rule and the value."""

from collections.abc import Sequence

import torch
from torch import Tensor


def require(condition: bool, name: str, rule: str, got: object) -> None:
    """Raise ValueError unless `condition` holds."""
    if not condition:
        raise ValueError(f"{name} must be {rule}, got {got}")


def check_tensor(
    name: str,
    tensor: Tensor,
    *,
    shape: Sequence[int | None],
    dtype: torch.dtype,
    device: torch.device | None = None,
    contiguous_from: int | None = None,
    row_multiple: int = 1,
    align: int = 16,
) -> None:
    """Raise ValueError unless `tensor` has the shape (None: any size), dtype, device and memory layout.

    contiguous_from: first axis of the part that must be contiguous (default: the last axis alone).
    row_multiple: every stride before that part must be a multiple of it. align: of the address, in bytes.
    """
    require(isinstance(tensor, Tensor), name, "a tensor", type(tensor).__name__)
    wanted = " x ".join("?" if size is None else str(size) for size in shape)
    fits = tensor.ndim == len(shape) and all(
        size is None or size == have for size, have in zip(shape, tensor.shape, strict=False)
    )
    require(fits, name, f"of shape {wanted}", tuple(tensor.shape))
    require(tensor.dtype == dtype, name, f"{dtype}", tensor.dtype)
    if device is not None:
        require(tensor.device == device, name, f"on {device}", tensor.device)
    first = tensor.ndim - 1 if contiguous_from is None else contiguous_from
    inner, outer = tensor.stride()[first:], tensor.stride()[:first]
    expected: list[int] = []
    step = 1
    for size in reversed(tensor.shape[first:]):
        expected.insert(0, step)
        step *= size
    packed = all(
        n == 1 or have == want for n, have, want in zip(tensor.shape[first:], inner, expected, strict=True)
    )
    require(packed, name, f"contiguous in its last {tensor.ndim - first} axes", f"strides {tensor.stride()}")
    whole = all(n == 1 or stride % row_multiple == 0 for n, stride in zip(tensor.shape, outer, strict=False))
    require(whole, name, f"strided in multiples of {row_multiple}", f"strides {tensor.stride()}")
    require(tensor.data_ptr() % align == 0, name, f"aligned to {align} bytes", hex(tensor.data_ptr()))
