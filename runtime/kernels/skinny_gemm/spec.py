"""What a call site of the weight-streaming GEMM is, and what the kernel cannot do."""

from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.kernels.common.launch.arguments import check_tensor, require
from runtime.kernels.skinny_gemm.reference import EPILOGUES

CUTE_TARGETS = ("sm_90a", "sm_100a", "sm_103a")


@dataclass(frozen=True)
class SkinnyGemmSpec:
    """One call site: a weight [n, k] and what is done with the product. Nothing is updated in place."""

    n: int
    k: int
    epilogue: str = "bf16"

    @property
    def out_dtype(self) -> torch.dtype:
        """Dtype of the output."""
        return torch.float32 if self.epilogue == "fp32" else torch.bfloat16

    @property
    def columns(self) -> int:
        """Columns of the output."""
        return self.n // 2 if self.epilogue == "situ" else self.n


def unsupported(spec: SkinnyGemmSpec, arch: str) -> list[str]:
    """Every reason why the kernel cannot run `spec` on `arch` for any number of rows."""
    reasons = []
    if arch not in CUTE_TARGETS:
        reasons.append(f"compiled for {', '.join(CUTE_TARGETS)}, not for {arch}")
    if spec.k % 64:
        reasons.append(f"k {spec.k} is not a multiple of 64")
    if spec.epilogue not in EPILOGUES:
        reasons.append(f"epilogue {spec.epilogue!r} is not one of {', '.join(EPILOGUES)}")
    if spec.epilogue == "situ" and spec.n % 2:
        reasons.append(f"n {spec.n} is odd, situ needs pairs of rows")
    return reasons


def check_weight(spec: SkinnyGemmSpec, weight: Tensor) -> None:
    """Raise ValueError unless `weight` is [n, k] BF16, contiguous."""
    check_tensor("weight", weight, shape=(spec.n, spec.k), dtype=torch.bfloat16, contiguous_from=0)


def check(spec: SkinnyGemmSpec, x: Tensor, out: Tensor) -> None:
    """Raise ValueError unless x is [M, k] BF16 with a row stride that is a multiple of 8, and out [M, columns]."""
    check_tensor("x", x, shape=(None, spec.k), dtype=torch.bfloat16, row_multiple=8)
    require(x.is_cuda, "x", "on a CUDA device", x.device)
    check_tensor("out", out, shape=(x.shape[0], spec.columns), dtype=spec.out_dtype, device=x.device, align=4)
