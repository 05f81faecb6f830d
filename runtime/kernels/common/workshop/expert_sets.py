"""Random experts and routings for benches: weights straight in Humming's layout, cold caches."""

from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.kernels.common.launch.routing import Routing, group_pairs

LATENT, EXPERTS, TOP_K = 3584, 896, 16


def random_weights(width: int, experts: int = EXPERTS, latent: int = LATENT) -> list[Tensor]:
    """w13, its scales, w2, its scales: random codes, scales about 2^-7."""
    device = "cuda"

    def pair(rows, columns):
        words = torch.randint(
            -(2**31), 2**31, (experts, columns // 16, 2 * rows), dtype=torch.int32, device=device
        )
        shape = (experts, columns // 32, rows)
        return words, torch.randint(118, 123, shape, dtype=torch.uint8, device=device)

    return [*pair(2 * width, latent), *pair(latent, width)]


def random_ids(tokens: int, skew: float, experts: int = EXPERTS) -> Tensor:
    """[T, 16] distinct experts a token; expert popularity falls with rank^-skew, 0 is uniform."""
    popularity = torch.arange(1, experts + 1, device="cuda").float() ** -skew
    popularity = popularity[torch.randperm(experts, device="cuda")]
    return torch.multinomial(popularity.repeat(tokens, 1), TOP_K).int()


@dataclass(frozen=True)
class Step:
    """One call's inputs and output."""

    logits: Tensor
    ids: Tensor
    routing: Routing
    x: Tensor
    out: Tensor


def random_steps(tokens: int, skew: float, sets: int, experts: int = EXPERTS) -> list[Step]:
    """`sets` steps with choices of their own; the logits choose the same experts as `ids`."""
    steps = []
    for _ in range(sets):
        ids = random_ids(tokens, skew, experts)
        logits = torch.rand(tokens, experts, device="cuda") - 3
        logits.scatter_(1, ids.long(), 1 + torch.rand(tokens, TOP_K, device="cuda"))
        weights = torch.rand(tokens, TOP_K, device="cuda") / TOP_K
        routing = group_pairs(ids, weights, first=0, local=experts)
        x = torch.randn(tokens, LATENT, device="cuda").bfloat16()
        steps.append(Step(logits, ids, routing, x, torch.empty_like(x)))
    return steps


def expert_bytes(width: int) -> int:
    """Bytes of one expert: codes and scales of w13 and w2."""
    return 3 * width * LATENT * 17 // 32


def distinct(steps: list[Step]) -> float:
    """Experts that a step reads, on average."""
    return sum(len(step.ids.unique()) for step in steps) / len(steps)
