"""What a call site of KDA decode is, and what the fused kernel cannot do."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from runtime.kernels.common.launch.arguments import check_tensor, require
from runtime.kernels.common.launch.overlap import Overlap

HEAD_SIZE = 128
TAPS = 4
MAX_TOKENS = 8
CUTE_TARGETS = ("sm_90a", "sm_100a", "sm_103a")


@dataclass(frozen=True)
class KdaDecodeSpec:
    """One call site; everything here is fixed when the model is loaded.

    heads: local heads H (12 at TP8, 6 at TP16). tokens: query tokens per request, 1 for decode, 2…8 for verify.
    lower_bound: of the log decay, negative. overlap: promises about the neighbours; the state inputs are `state`
    and `conv_state`. Two active requests never share a slot. In place: `state`, `conv_state`.
    """

    heads: int
    tokens: int = 1
    lower_bound: float = -5.0
    eps: float = 1e-5
    overlap: Overlap = field(default_factory=Overlap)


def unsupported(spec: KdaDecodeSpec, arch: str) -> list[str]:
    """Every reason why the fused kernel cannot run `spec` on `arch`."""
    reasons = []
    if arch not in CUTE_TARGETS:
        reasons.append(f"compiled for {', '.join(CUTE_TARGETS)}, not for {arch}")
    if not 1 <= spec.tokens <= MAX_TOKENS:
        reasons.append(f"tokens {spec.tokens} is not in 1…{MAX_TOKENS}")
    if spec.heads < 1:
        reasons.append(f"heads {spec.heads} is not positive")
    if not spec.lower_bound < 0:
        reasons.append(f"lower_bound {spec.lower_bound} is not negative")
    return reasons


def check_weights(
    spec: KdaDecodeSpec, f_b: Tensor, conv_weight: Tensor, A_log: Tensor, dt_bias: Tensor, norm_weight: Tensor
) -> None:
    """Raise ValueError unless the weights fit `spec`.

    f_b: [H 128, 128] BF16. conv_weight: [3 H 128, 4] FP32. A_log: [H] FP32. dt_bias: [H, 128] FP32.
    norm_weight: [128] FP32. All contiguous.
    """
    width, wide = spec.heads * HEAD_SIZE, {"dtype": torch.float32, "contiguous_from": 0, "device": f_b.device}
    check_tensor("f_b", f_b, shape=(width, HEAD_SIZE), dtype=torch.bfloat16, contiguous_from=0)
    check_tensor("conv_weight", conv_weight, shape=(3 * width, TAPS), **wide)
    check_tensor("A_log", A_log, shape=(spec.heads,), align=4, **wide)
    check_tensor("dt_bias", dt_bias, shape=(spec.heads, HEAD_SIZE), **wide)
    check_tensor("norm_weight", norm_weight, shape=(HEAD_SIZE,), **wide)


def check(
    spec: KdaDecodeSpec,
    projected: Tensor,
    conv_state: Tensor,
    state: Tensor,
    slots: Tensor,
    accepted: Tensor | None,
    out: Tensor,
) -> None:
    """Raise ValueError unless the tensors of a call fit `spec`.

    projected: [N q, P] BF16, P ≥ 4 H 128 + 128 + H, row stride a multiple of 8. conv_state: [S, W, 3 H 128] BF16, any
    strides, W ≥ q + 2. state: [S, H, 128, 128] FP32, the last two axes contiguous. slots: [N, q] int32.
    accepted: [N] int32 for verify, None for decode. out: [N q, H 128] BF16.
    """
    width, columns = spec.heads * HEAD_SIZE, 4 * spec.heads * HEAD_SIZE + HEAD_SIZE + spec.heads
    require(projected.is_cuda, "projected", "on a CUDA device", projected.device)
    check_tensor(
        "slots", slots, shape=(None, spec.tokens), dtype=torch.int32, device=projected.device, align=4
    )
    requests, device = slots.shape[0], projected.device
    rows = requests * spec.tokens
    check_tensor("projected", projected, shape=(rows, None), dtype=torch.bfloat16, row_multiple=8)
    require(
        projected.shape[1] >= columns, "projected", f"at least {columns} columns wide", projected.shape[1]
    )
    require(
        (accepted is not None) == (spec.tokens > 1),
        "accepted",
        "given exactly for verify",
        accepted is not None,
    )
    if accepted is not None:
        check_tensor("accepted", accepted, shape=(requests,), dtype=torch.int32, device=device, align=4)
    require(
        conv_state.ndim == 3 and conv_state.shape[2] == 3 * width,
        "conv_state",
        f"S x W x {3 * width}",
        tuple(conv_state.shape),
    )
    require(conv_state.dtype == torch.bfloat16, "conv_state", "torch.bfloat16", conv_state.dtype)
    require(conv_state.device == device, "conv_state", f"on {device}", conv_state.device)
    require(
        conv_state.shape[1] >= spec.tokens + 2,
        "conv_state",
        f"at least {spec.tokens + 2} inputs wide",
        conv_state.shape[1],
    )
    pages = conv_state.shape[0]
    check_tensor(
        "state",
        state,
        shape=(pages, spec.heads, HEAD_SIZE, HEAD_SIZE),
        dtype=torch.float32,
        device=device,
        contiguous_from=2,
        row_multiple=4,
    )
    check_tensor("out", out, shape=(rows, width), dtype=torch.bfloat16, device=device, row_multiple=8)
