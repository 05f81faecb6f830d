"""What a call site of Attention Residuals is, and what the fast kernel cannot do."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from runtime.kernels.common.launch.arguments import check_tensor, require
from runtime.kernels.common.launch.overlap import Overlap

MAX_BLOCKS = 8
CUTE_TARGETS = ("sm_90a", "sm_100a", "sm_103a")


@dataclass(frozen=True)
class AttnResSpec:
    """One call site; everything here is fixed when the model is loaded.

    hidden: D. num_blocks: stored blocks among the sources. write: block that stores the new prefix, or None.
    has_delta, has_norm: whether `delta` is added to the prefix, and `out_norm` applied to the result.
    overlap: promises about the neighbours; the state inputs are `prefix` and `blocks`.
    In place: `prefix`, `blocks[:, write]`.
    """

    hidden: int
    num_blocks: int
    write: int | None
    has_delta: bool
    has_norm: bool
    eps: float
    out_eps: float
    overlap: Overlap = field(default_factory=Overlap)


def unsupported(spec: AttnResSpec, arch: str) -> list[str]:
    """Every reason why the cluster kernel cannot run `spec` on `arch`."""
    reasons = []
    if arch not in CUTE_TARGETS:
        reasons.append(f"compiled for {', '.join(CUTE_TARGETS)}, not for {arch}")
    if spec.hidden % (7 * 256) and spec.hidden % (4 * 256) and spec.hidden % (2 * 256):
        reasons.append(f"hidden {spec.hidden} does not divide into clusters of whole warps")
    if spec.hidden > 16384:
        reasons.append(f"hidden {spec.hidden} is more than 16384")
    if not 0 <= spec.num_blocks <= MAX_BLOCKS:
        reasons.append(f"num_blocks {spec.num_blocks} is not in 0…{MAX_BLOCKS}")
    return reasons


def check(spec: AttnResSpec, prefix: Tensor, delta: Tensor | None, blocks: Tensor, out: Tensor) -> None:
    """Raise ValueError unless the tensors of a call fit `spec`. prefix, delta, out: [T, D]; blocks: [T, B, D]."""
    row = {"shape": (None, spec.hidden), "dtype": torch.bfloat16, "row_multiple": 8}
    check_tensor("prefix", prefix, **row)
    require(prefix.is_cuda, "prefix", "on a CUDA device", prefix.device)
    tokens = prefix.shape[0]
    here = {**row, "shape": (tokens, spec.hidden), "device": prefix.device}
    require((delta is not None) == spec.has_delta, "delta", "given exactly if has_delta", delta is not None)
    if delta is not None:
        check_tensor("delta", delta, **here)
    check_tensor("blocks", blocks, **{**here, "shape": (tokens, None, spec.hidden)})
    needed = max(spec.num_blocks, -1 if spec.write is None else spec.write + 1)
    require(blocks.shape[1] >= needed, "blocks", f"at least {needed} blocks", blocks.shape[1])
    check_tensor("out", out, **here)


def check_weights(spec: AttnResSpec, score_norm: Tensor, score_vec: Tensor, out_norm: Tensor | None) -> None:
    """Raise ValueError unless the weights fit `spec`; each is [D]."""
    for name, weight in (("score_norm", score_norm), ("score_vec", score_vec), ("out_norm", out_norm)):
        if weight is None:
            require(not spec.has_norm, name, "given if has_norm", None)
            continue
        check_tensor(name, weight, shape=(spec.hidden,), dtype=torch.bfloat16, device=score_norm.device)
