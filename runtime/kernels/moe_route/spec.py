"""What a call site of routing is, and what the kernel cannot do."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from runtime.kernels.common.launch.arguments import check_tensor, require
from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.common.launch.routing import Routing

CUTE_TARGETS = ("sm_90a", "sm_100a", "sm_103a")
MAX_TOKENS, MAX_EXPERTS, MAX_TOP_K = 64, 1024, 32


@dataclass(frozen=True)
class MoeRouteSpec:
    """One call site; everything here is fixed when the model is loaded.

    first, local: the experts of this rank, all by default (`local` 0). overlap: there are no state inputs, so only
    `early_trigger` has a meaning.
    """

    experts: int = 896
    top_k: int = 16
    renormalize: bool = True
    scaling: float = 1.0
    first: int = 0
    local: int = 0
    overlap: Overlap = field(default_factory=Overlap)

    @property
    def held(self) -> int:
        """Experts of this rank."""
        return self.local or self.experts


def unsupported(spec: MoeRouteSpec, arch: str) -> list[str]:
    """Every reason why the kernel cannot run `spec` on `arch` for any number of tokens."""
    reasons = []
    if arch not in CUTE_TARGETS:
        reasons.append(f"compiled for {', '.join(CUTE_TARGETS)}, not for {arch}")
    if not 1 <= spec.experts <= MAX_EXPERTS:
        reasons.append(f"experts {spec.experts} is not in 1…{MAX_EXPERTS}")
    if not 1 <= spec.top_k <= min(MAX_TOP_K, spec.experts):
        reasons.append(f"top_k {spec.top_k} is not in 1…{min(MAX_TOP_K, spec.experts)}")
    if not 0 <= spec.first <= spec.first + spec.held <= spec.experts:
        reasons.append(f"experts {spec.first}…{spec.first + spec.held - 1} are not among {spec.experts}")
    return reasons


def check_bias(spec: MoeRouteSpec, correction_bias: Tensor) -> None:
    """Raise ValueError unless the bias is [E] FP32, contiguous."""
    check_tensor("correction_bias", correction_bias, shape=(spec.experts,), dtype=torch.float32, align=4)


def check(spec: MoeRouteSpec, logits: Tensor, routing: Routing, padding: Tensor | None) -> None:
    """Raise ValueError unless the tensors of a call fit `spec`: logits [T, E] FP32, padding [T] bool."""
    check_tensor("logits", logits, shape=(None, spec.experts), dtype=torch.float32, align=4)
    require(logits.is_cuda, "logits", "on a CUDA device", logits.device)
    device = logits.device
    if padding is not None:
        check_tensor("padding", padding, shape=(logits.shape[0],), dtype=torch.bool, device=device, align=1)
    choices = {"shape": (logits.shape[0], spec.top_k), "device": device, "contiguous_from": 0, "align": 4}
    check_tensor("routing.weights", routing.weights, dtype=torch.float32, **choices)
    check_tensor("routing.ids", routing.ids, dtype=torch.int32, **choices)
    pairs = logits.shape[0] * spec.top_k
    require(routing.experts.shape[0] >= pairs, "routing", f"for {pairs} pairs", routing.experts.shape[0])
    require(
        (routing.first, routing.local) == (spec.first, spec.held),
        "routing",
        f"for experts from {spec.first}, {spec.held} of them",
        f"from {routing.first}, {routing.local}",
    )
