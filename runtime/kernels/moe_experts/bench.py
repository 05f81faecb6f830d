"""Time the routed experts beside the Humming chain of vLLM: `python -m runtime.kernels.moe_experts.bench`.

Both read the same weights. Routing is done before; the chain with it is `runtime.kernels.bench_moe`.
"""

from collections.abc import Iterator

import torch

from runtime.kernels.common.launch.overlap import Overlap
from runtime.kernels.common.workshop.bench import Case, main
from runtime.kernels.common.workshop.expert_sets import (
    distinct,
    expert_bytes,
    random_steps,
    random_weights,
)
from runtime.kernels.common.workshop.humming_peer import HummingExperts, humming_installed
from runtime.kernels.moe_experts.dispatch import MoeExperts
from runtime.kernels.moe_experts.spec import MoeExpertsSpec

TOKENS = (1, 2, 4, 8, 16, 32, 64)
LAYERS = 2
PADDED = {384: 384, 192: 256}  # widths that vLLM stores


def cases() -> Iterator[Case]:
    """A rank of TP8 (384) and TP16 (192, beside vLLM's padded 256), 1…64 tokens, uniform and Zipf routing."""
    for width in PADDED:
        sites = [weights_and_op(width) for _ in range(LAYERS)]
        peers = humming_of(width, [weights for weights, _ in sites])
        for skew in (0.0, 1.0):
            for tokens in TOKENS:
                yield _case(width, skew, tokens, [op for _, op in sites], peers)


def weights_and_op(width):
    """Random weights of a layer, and our operator on them with settled groups."""
    weights = random_weights(width)
    return weights, MoeExperts(
        MoeExpertsSpec(width=width, overlap=Overlap(settled=True)), *weights, provider="cute"
    )


def humming_of(width, layers):
    """Humming on the same weights, or on random ones of the width that vLLM pads to; none if it is not installed."""
    if not humming_installed():
        return []
    padded = PADDED[width]
    return [HummingExperts(3584, padded, *(w if padded == width else random_weights(padded))) for w in layers]


def _case(width, skew, tokens, ops, peers):
    steps = random_steps(tokens, skew, sets=8)
    space = ops[0].buffers(tokens)
    pairs = [(ops[i % LAYERS], step) for i, step in enumerate(steps)]
    calls = {"k3": [lambda o=o, s=s: o(s.x, s.routing, space, s.out) for o, s in pairs]}
    if peers:
        buffers = peers[0].buffers(tokens, 16)
        theirs = [(peers[i % LAYERS], s, torch.empty_like(s.out)) for i, s in enumerate(steps)]
        calls["humming"] = [
            lambda p=p, s=s, o=o: p(s.x, s.routing.weights, s.routing.ids, buffers, o) for p, s, o in theirs
        ]
    values = {"width": width, "skew": skew, "tokens": tokens, "experts": round(distinct(steps), 1)}
    return Case(values, int(distinct(steps) * expert_bytes(width)), calls, min_calls=16)


if __name__ == "__main__":
    main("moe_experts", cases)
