"""Argument errors name the argument, the rule and what was given."""

import pytest
import torch

from runtime.kernels.common.launch.arguments import check_tensor

GOOD = torch.zeros(3, 16, dtype=torch.bfloat16)
RULES = {"shape": (3, 16), "dtype": torch.bfloat16, "row_multiple": 8}


def test_a_fitting_tensor_passes_also_as_a_slice_of_wider_rows():
    check_tensor("x", GOOD, **RULES)
    check_tensor("x", torch.zeros(3, 64, dtype=torch.bfloat16)[:, 16:32], **RULES)
    check_tensor("x", GOOD, **{**RULES, "shape": (None, 16)}, contiguous_from=0)


@pytest.mark.parametrize(
    ("tensor", "extra", "message"),
    [
        (GOOD.float(), {}, "x must be torch.bfloat16, got torch.float32"),
        (GOOD[:2], {}, r"x must be of shape 3 x 16, got \(2, 16\)"),
        (GOOD[0], {}, "x must be of shape 3 x 16"),
        (
            torch.zeros(16, 3, dtype=torch.bfloat16).T,
            {},
            "x must be contiguous in its last 1 axes, got strides",
        ),
        (torch.zeros(3, 20, dtype=torch.bfloat16)[:, :16], {}, "x must be strided in multiples of 8"),
        (
            torch.zeros(3, 17, dtype=torch.bfloat16)[:, 1:],
            {"row_multiple": 1},
            "x must be aligned to 16 bytes",
        ),
        (
            torch.zeros(3, 32, dtype=torch.bfloat16)[:, :16],
            {"contiguous_from": 0},
            "contiguous in its last 2 axes",
        ),
        (GOOD, {"device": torch.device("meta")}, "x must be on meta, got cpu"),
        ([1, 2], {}, "x must be a tensor, got list"),
    ],
    ids=["dtype", "size", "rank", "order", "row stride", "address", "rows", "device", "type"],
)
def test_a_tensor_that_does_not_fit_is_refused(tensor, extra, message):
    with pytest.raises(ValueError, match=message):
        check_tensor("x", tensor, **{**RULES, **extra})
