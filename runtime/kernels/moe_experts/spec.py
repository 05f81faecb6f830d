"""What a call site of the routed experts is, and what the kernels cannot do."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from runtime.kernels.common.launch.arguments import check_tensor, require
from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.common.launch.routing import Routing

CUTE_TARGETS = ("sm_90a", "sm_100a", "sm_103a")
LARGEST_SCALE = 128  # of the streaming kernels; 2^(128 - 127) = 2, so weights up to 12
_SCALE_DTYPES = (torch.uint8, torch.float8_e8m0fnu)


@dataclass(frozen=True)
class MoeExpertsSpec:
    """One call site; everything here is fixed when the model is loaded.

    latent: K, of the tokens and of the result. width: I, intermediate size of a rank. experts: of this rank. top_k: of
    a token. overlap: the state inputs are the groups of the routing (experts, rows, count).
    """

    latent: int = 3584
    width: int = 384
    experts: int = 896
    top_k: int = 16
    beta: float = 4.0
    linear_beta: float = 25.0
    overlap: Overlap = field(default_factory=Overlap)


def unsupported(spec: MoeExpertsSpec, arch: str) -> list[str]:
    """Every reason why the streaming kernels cannot run `spec` on `arch`."""
    reasons = []
    if arch not in CUTE_TARGETS:
        reasons.append(f"compiled for {', '.join(CUTE_TARGETS)}, not for {arch}")
    if spec.latent % 256 or spec.latent <= 0:
        reasons.append(f"latent {spec.latent} is not a multiple of 256")
    if spec.width % 64 or spec.width <= 0:
        reasons.append(f"width {spec.width} is not a multiple of 64")
    if spec.experts * spec.latent // 32 * max(spec.width // 32, 1) >= 2**30:
        reasons.append(
            f"{spec.experts} experts of {spec.latent} x {spec.width} have too many blocks for 32 bits"
        )
    return reasons


def check_scales(*scales: Tensor) -> list[str]:
    """Every reason why the streaming kernels cannot apply these E8M0 scales exactly; reads them (once, at load)."""
    largest = max((int(s.view(torch.uint8).max()) for s in scales if s.numel()), default=0)
    if largest == 255:
        return ["an E8M0 scale is 255, which means NaN"]
    if largest > LARGEST_SCALE:
        return [f"an E8M0 scale is {largest}, above {LARGEST_SCALE}"]
    return []


def check_weights(spec: MoeExpertsSpec, w13: Tensor, w13_scale: Tensor, w2: Tensor, w2_scale: Tensor) -> None:
    """Raise ValueError, with all reasons, unless the tensors are `spec`'s weights in Humming's layout.

    w13 [E, K/16, 4 I] and w2 [E, I/16, 2 K] int32, w13_scale [E, K/32, 2 I] and w2_scale [E, I/32, K] bytes.
    All contiguous.
    """
    experts, latent, width = spec.experts, spec.latent, spec.width
    wanted = {
        "w13": (w13, (experts, latent // 16, 4 * width), (torch.int32,)),
        "w13_scale": (w13_scale, (experts, latent // 32, 2 * width), _SCALE_DTYPES),
        "w2": (w2, (experts, width // 16, 2 * latent), (torch.int32,)),
        "w2_scale": (w2_scale, (experts, width // 32, latent), _SCALE_DTYPES),
    }
    problems = []
    for name, (tensor, shape, dtypes) in wanted.items():
        if tensor.dtype not in dtypes:
            problems.append(f"{name} must be {' or '.join(map(str, dtypes))}, got {tensor.dtype}")
            continue
        try:
            check_tensor(name, tensor, shape=shape, dtype=tensor.dtype, device=w13.device, contiguous_from=0)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("not Humming's layout of these experts: " + "; ".join(problems))


def check(spec: MoeExpertsSpec, x: Tensor, routing: Routing, out: Tensor) -> None:
    """Raise ValueError unless the tensors of a call fit `spec`: x [T, K] BF16, out [T, K] BF16."""
    rows = {"dtype": torch.bfloat16, "row_multiple": 8}
    check_tensor("x", x, shape=(None, spec.latent), **rows)
    require(x.is_cuda, "x", "on a CUDA device", x.device)
    tokens, device = x.shape[0], x.device
    check_tensor("out", out, shape=(tokens, spec.latent), device=device, **rows)
    require(
        tokens * max(x.stride(0), 1) < 2**31, "x", "addressed by 32 bits", f"{tokens} rows of {x.stride(0)}"
    )
    choices = {"shape": (tokens, spec.top_k), "device": device, "contiguous_from": 0}
    check_tensor("routing.weights", routing.weights, dtype=torch.float32, align=4, **choices)
    check_tensor("routing.ids", routing.ids, dtype=torch.int32, align=4, **choices)
    groups = {"dtype": torch.int32, "device": device, "contiguous_from": 0, "align": 4}
    check_tensor("routing.experts", routing.experts, shape=(None,), **groups)
    check_tensor("routing.rows", routing.rows, shape=(routing.experts.shape[0], 8), **groups)
    check_tensor("routing.count", routing.count, shape=(1,), **groups)
    require(routing.local == spec.experts, "routing", f"for {spec.experts} experts here", routing.local)
