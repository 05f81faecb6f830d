"""Time routing and routed experts together, top-k … sum: `python -m runtime.kernels.bench_moe`.

"k3" routes right before the experts, which then wait for it; "k3 routed" has the groups from before, as in a layer
where other kernels stand between. "stock" is vLLM's chain.
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
from runtime.kernels.common.workshop.humming_peer import HummingExperts, humming_installed, stock_topk
from runtime.kernels.moe_experts.dispatch import MoeExperts
from runtime.kernels.moe_experts.spec import MoeExpertsSpec
from runtime.kernels.moe_route.dispatch import MoeRoute
from runtime.kernels.moe_route.spec import MoeRouteSpec

PADDED = {384: 384, 192: 256}  # widths that vLLM stores
LAYERS = 2


def cases() -> Iterator[Case]:
    """A rank of TP8 (384) and of TP16 (192, vLLM pads it to 256); uniform (skew 0) and Zipf (1) routing."""
    bias = torch.zeros(896, device="cuda")
    route = MoeRoute(MoeRouteSpec(), bias, provider="cute")
    for width in PADDED:
        weights = [random_weights(width) for _ in range(LAYERS)]
        waits, settled = (
            [
                MoeExperts(MoeExpertsSpec(width=width, overlap=Overlap(settled=s)), *w, provider="cute")
                for w in weights
            ]
            for s in (False, True)
        )
        peers = _peers(width, weights)
        for skew in (0.0, 1.0):
            for tokens in (1, 8, 64, 2, 4, 16, 32):
                yield _case(width, skew, tokens, (route, waits, settled), peers, bias)


def _peers(width, layers):
    if not humming_installed():
        return []
    padded = PADDED[width]
    return [HummingExperts(3584, padded, *(w if padded == width else random_weights(padded))) for w in layers]


def _case(width, skew, tokens, ours, peers, bias):
    route, waits, settled = ours
    steps = random_steps(tokens, skew, sets=8)
    space, routing = waits[0].buffers(tokens), route.buffers(tokens)
    both = [(waits[i % LAYERS], settled[i % LAYERS], step) for i, step in enumerate(steps)]
    calls = {
        "k3": [lambda o=o, s=s: o(s.x, route(s.logits, routing), space, s.out) for o, _, s in both],
        "k3 routed": [lambda o=o, s=s: o(s.x, s.routing, space, s.out) for _, o, s in both],
    }
    if peers:
        buffers = peers[0].buffers(tokens, 16)

        def stock(p, s, out):
            return p(s.x, *stock_topk(s.logits, bias, 16), buffers, out)

        theirs = [(peers[i % LAYERS], s, torch.empty_like(s.out)) for i, s in enumerate(steps)]
        calls["stock"] = [lambda t=t: stock(*t) for t in theirs]
        calls["stock routed"] = [
            lambda p=p, s=s, o=o: p(s.x, s.routing.weights, s.routing.ids, buffers, o) for p, s, o in theirs
        ]
    values = {"width": width, "skew": skew, "tokens": tokens, "experts": round(distinct(steps), 1)}
    return Case(values, int(distinct(steps) * expert_bytes(width)), calls, min_calls=16)


if __name__ == "__main__":
    main("moe", cases)
